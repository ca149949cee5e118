"""`sightline serve`: models for others, by an API over HTTP."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Folders of trained models or names of shipped ones, or NAME=FOLDER.")
    ],
    host: Annotated[str, typer.Option(help="Where requests may come from: 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where requests come in; 0 takes one that is free.")
    ] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="A file with a line NAME KEY for each who may ask; without, everybody may.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A web page elsewhere that may ask: https://example.org; may be repeated.")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option(help="A limit, or another option of the service, as option=value.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, torch or ctranslate2: what searches.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, or, faster and rounded, int8 (on a CPU) or bfloat16 (on a GPU).")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
    log: Annotated[str, typer.Option(help="json or plain; auto is plain for a person, json for a file.")] = "auto",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve models: translation, scores, and a look inside, by an API over HTTP.

    The first model is loaded at once, others when somebody asks for them. Of models that do not translate (GPT, BERT)
    there is the look inside. SIGHUP loads them anew from their folders;
    SIGTERM and Ctrl-C end the service when all that was begun is done.
    """
    import torch

    from sightline.config import ServeConfig
    from sightline.engine import load_any
    from sightline.errors import InputError
    from sightline.options import load_options

    if log not in ("auto", "json", "plain"):
        raise InputError(f"there is no log {log!r}; known are auto, json and plain.")
    given: dict[str, Any] = {"origins": tuple(allow_origin)} if allow_origin else {}
    config = load_options(ServeConfig, given, sets=set or [])
    with needed():
        from sightline.serve.access import read_keys
        from sightline.serve.app import bind, create_app, run
        from sightline.serve.models import Models, named
        from sightline.serve.observe import start_logging
        from sightline.serve.service import Service

    known = read_keys(keys) if keys else {}
    chosen = {"engine": cast("Any", engine), "precision": cast("Any", precision), "device": device}
    threads = torch.get_num_threads()
    shelf = Models(named(models), lambda folder: load_any(folder, **chosen, threads=threads), config.memory)
    bound = bind(host, port)
    start_logging(json_lines=log == "json" or (log == "auto" and not sys.stderr.isatty()))
    if not known and host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(f"Anybody who reaches {host} may ask: there are no keys (--keys).", err=True)
    shelf.load_first()
    bound.listen(2048)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    typer.echo(f"Serving {', '.join(shelf.entries)} at {address}", err=True)
    if open_page:
        _open(address)
    run(create_app(Service(shelf, config), known), bound)


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Inside the block, what serving needs is loaded; if it is missing, that is told."""
    from sightline.errors import InputError

    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}; in the clone, pip install -e '.[serve]' brings it.") from None


def _open(address: str) -> None:
    """In a browser with windows, if there is one; one in the terminal would be in the way."""
    import os
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)

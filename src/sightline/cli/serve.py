"""`sightline serve`: serve models over HTTP."""

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sightline.errors import InputError


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Folders or names of models, or NAME=FOLDER; without them, all bundled models."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of API keys, one line NAME KEY per client; without it, access is open.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a web page that may send requests: https://example.org; may be repeated."),
    ] = None,
    set: Annotated[list[str] | None, typer.Option(help="Option of the service, as option=value.")] = None,
    engine: Annotated[str, typer.Option(help="Search backend: auto, torch or ctranslate2.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, int8 (CPU) or bfloat16 (GPU). The last two are faster and round.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; auto chooses the fastest.")] = "auto",
    log: Annotated[str, typer.Option(help="json or plain; auto is plain in a terminal and json otherwise.")] = "auto",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve models over HTTP: translation, scores and traces.

    The first model is loaded immediately, the others on their first request. Models that do not translate (GPT, BERT)
    can be traced. SIGHUP reloads the models from their folders; SIGTERM and Ctrl-C stop the service after the requests
    in progress.
    """
    import torch

    from sightline.config import ServeConfig
    from sightline.engine import load
    from sightline.options import load_options

    if log not in ("auto", "json", "plain"):
        raise InputError.of("log", log, f"must be auto, json or plain, got {log!r}.")
    given: dict[str, Any] = {"origins": tuple(allow_origin)} if allow_origin else {}
    config = load_options(ServeConfig, given, sets=set or [])
    import_packages()
    from sightline.serve.access import read_keys
    from sightline.serve.app import bind, create_app, run
    from sightline.serve.models import Models, bundled, named
    from sightline.serve.observe import start_logging
    from sightline.serve.service import Service

    known = read_keys(keys) if keys else {}
    chosen = {"backend": cast("Any", engine), "precision": cast("Any", precision), "device": device}
    threads = torch.get_num_threads()
    shelf = Models(named(models or bundled()), lambda folder: load(folder, **chosen, threads=threads), config.memory)
    bound = bind(host, port)
    start_logging(json_lines=log == "json" or (log == "auto" and not sys.stderr.isatty()))
    if not known and host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(f"Warning: access from {host} is open to everyone. Use --keys to restrict it.", err=True)
    shelf.load_first()
    bound.listen(2048)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    typer.echo(f"Serving {', '.join(shelf.entries)} at {address}", err=True)
    if open_page:
        _open(address)
    run(create_app(Service(shelf, config), known), bound)


def import_packages() -> None:
    """Import the packages that serving needs; raise an error that names a missing one."""
    from sightline.files import optional_import

    for name in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        optional_import(name, extra="serve")


def _open(address: str) -> None:
    """Open a graphical browser, if there is one; not one in the terminal."""
    import os
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)

"""`sightline serve`: serve models over HTTP."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option, echo

from sightline.choices import BackendName, PrecisionName
from sightline.cli.parameters import PORT, Port, Strings, option

if TYPE_CHECKING:
    from sightline.config import ServeConfig

Log = Literal["auto", "json", "plain"]


def serve(
    models: Annotated[
        Strings, Argument(help="Folders or names of models, or NAME=FOLDER. Default: all bundled models.")
    ] = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 is all networks.")] = "127.0.0.1",
    port: Port = PORT,
    keys: Annotated[
        Path | None, Option(help="File of API keys: a line NAME KEY for each client. Without it, access is open.")
    ] = None,
    origins: list[str] = option("ServeConfig", "origins", "--allow-origin"),
    training: Annotated[
        bool | None,
        Option(
            "--training/--no-training",
            help="Let readers of the page start a training run of half a minute. Default: only on a local address.",
        ),
    ] = None,
    set: Annotated[Strings, Option(help="Change an option of the service: max_beams=8.")] = None,
    backend: BackendName = option("LoadOptions", "backend"),
    precision: PrecisionName = option("LoadOptions", "precision"),
    device: str = option("LoadOptions", "device"),
    log: Annotated[Log, Option(help="Format of the log; auto is plain in a terminal and json otherwise.")] = "auto",
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve models over HTTP: translation, scores and traces.

    The first model is loaded immediately, the others on their first request. Models that do not translate (GPT, BERT)
    can be traced. SIGHUP reloads the models from their folders; SIGTERM and Ctrl-C stop the service after the requests
    in progress.
    """
    from sightline.config import ServeConfig
    from sightline.options import load_options

    config = load_options(ServeConfig, {"origins": tuple(origins)}, sets=set or [])
    load = {"backend": backend, "precision": precision, "device": device}
    run_service(models, host, port, config, keys=keys, log=log, open_page=open_page, training=training, **load)


def run_service(
    models: list[str] | None,
    host: str,
    port: int,
    config: "ServeConfig",
    *,
    keys: Path | None = None,
    log: Log = "auto",
    open_page: bool = False,
    training: bool | None = None,
    **load: Any,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `training`: whether clients may start a training run; default: if the host is this
    computer. `load`: options of `sightline.load`."""
    import webbrowser

    import torch

    import_packages()
    from sightline import engine
    from sightline.serve.access import read_keys
    from sightline.serve.app import bind, create_app, run
    from sightline.serve.models import Models, bundled, named
    from sightline.serve.observe import start_logging
    from sightline.serve.service import Service

    known = read_keys(keys) if keys else {}
    threads = torch.get_num_threads()
    folders = named(models or bundled())
    shelf = Models(folders, lambda folder: engine.load(folder, **load, threads=threads), config.memory)
    bound = bind(host, port)
    start_logging(log == "json" or (log == "auto" and not sys.stderr.isatty()))
    local = host in ("127.0.0.1", "localhost", "::1")
    if not known and not local:
        echo(f"Warning: access from {host} is open to everyone. Use --keys to restrict it.", err=True)
    shelf.load_first()
    bound.listen(2048)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    echo(f"Serving {', '.join(shelf.entries)} at {address}", err=True)
    # Without a display, webbrowser would open a browser in the terminal.
    if open_page and (sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        webbrowser.open(address)
    service = Service(shelf, config, training=local if training is None else training)
    run(create_app(service, known), bound)


def import_packages() -> None:
    """Import the packages that serving needs; raise an error that names a missing one."""
    from sightline.files import optional_import

    for name in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        optional_import(name, extra="serve")

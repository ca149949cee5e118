"""`sightline complete`: continue a text."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sightline.cli.parameters import Model, Strings, option
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.config import SearchConfig
    from sightline.engine import Completion

BETWEEN = "---"
"""The line between two continuations."""


def complete(
    model: Model,
    text: Annotated[
        str, Argument(help="Text to continue, or a file with it; - is standard input. An empty text begins a new one.")
    ] = "-",
    n: int = option("CompletionOptions", "n"),
    max_tokens: int = option("CompletionOptions", "max_tokens"),
    stop: list[str] = option("CompletionOptions", "stop"),
    stream: Annotated[bool, Option("--stream", help="Print the continuation while it is written.")] = False,
    echo: Annotated[bool, Option("--echo", help="Print the text before each continuation.")] = False,
    as_json: Annotated[
        bool,
        Option("--json", help="Write a JSON object per continuation: text, score, finish_reason, tokens, log_probs."),
    ] = False,
    top: int = option("CompletionOptions", "top"),
    beams: Annotated[
        int | None, Option("--beams", "-b", help="Search with this many beams instead of sampling; 1 is greedy search.")
    ] = None,
    temperature: float = option("SearchConfig", "temperature"),
    top_k: int = option("SearchConfig", "top_k"),
    top_p: float = option("SearchConfig", "top_p"),
    seed: int = option("SearchConfig", "seed"),
    forbid: list[str] = option("TextConstraints", "forbid"),
    require: list[str] = option("TextConstraints", "require"),
    set: Annotated[Strings, Option(help="Change another option of the search: repetition_penalty=1.2.")] = None,
    device: str = option("LoadOptions", "device"),
) -> None:
    """Continue a text with a language model. By default, the continuation is a sample.

    Several continuations (--n) are separated by a line with ---.
    """
    from sightline.config import CompletionOptions, SearchConfig
    from sightline.engine import load_writer
    from sightline.options import load_options

    asked = CompletionOptions(n=n, max_tokens=max_tokens, stop=tuple(stop), top=top)
    searches = beams is not None or bool(require)
    given: dict[str, Any] = {"nbest": n, "sample": not searches}
    given["beams"] = max(beams or (SearchConfig().beams if require else 1), n)
    given |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = load_options(SearchConfig, given, sets=set or [])
    if stream:
        _check_stream(options, as_json, require)
    prompt = _read(text)
    writer = load_writer(model, device=device)
    more: dict[str, Any] = {"forbid": forbid, "stop": asked.stop, "max_tokens": asked.max_tokens}
    plan = writer.plan([prompt], options, require=require, top=asked.top, **more)
    if stream:
        _print(prompt if echo else "")
        for piece in writer.stream_plan(plan):
            _print(piece)
        _print("\n")
        return
    for number, found in enumerate(writer.run(plan)[0]):
        if as_json:
            _print(_written(found, prompt if echo else "", asked.top) + "\n")
        else:
            between = f"{BETWEEN}\n" if number else ""
            _print(f"{between}{prompt if echo else ''}{found.text}\n")


def _check_stream(options: "SearchConfig", as_json: bool, require: list[str]) -> None:
    """Check that a continuation can be streamed."""
    if options.beams > 1:
        option = "n" if options.nbest > 1 else "beams"
        value = getattr(options, "nbest" if option == "n" else "beams")
        raise InputError(f"`stream` needs `{option}` = 1, got {value}.", option=option, value=value)
    if as_json or require:
        option = "json" if as_json else "require"
        raise InputError(
            f"`stream` prints text as it is written and excludes --{option}. Leave one out.", option=option
        )


def _read(text: str) -> str:
    """Return the text of an argument: standard input, a file, or the argument itself."""
    if text != "-" and not _is_file(text):
        return text
    data = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
    try:
        found = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "Standard input" if text == "-" else text
        raise InputError(f"{name}: byte {error.start + 1} is not valid UTF-8.", option="text", value=text) from None
    return found.removesuffix("\n").removesuffix("\r")


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def _print(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def _written(found: "Completion", before: str, top: int) -> str:
    """Format a continuation as JSON."""
    fields: dict[str, Any] = {"text": before + found.text, "score": found.score, "finish_reason": found.finish_reason}
    fields |= {"tokens": found.tokens, "log_probs": found.log_probs}
    if top:
        fields["top"] = [[one._asdict() for one in likely] for likely in found.top]
    return json.dumps(fields, ensure_ascii=False)

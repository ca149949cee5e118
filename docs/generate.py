"""Write the generated pages of the reference: `python docs/generate.py` (or `make docs`). A test compares them."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import torch
import typer.main

import sightline
from sightline.cli.main import app
from sightline.config import (
    CompletionOptions,
    Config,
    LoadOptions,
    ModelConfig,
    SearchConfig,
    ServeConfig,
    ShortlistOptions,
    TextConstraints,
)
from sightline.model.transformer import build
from sightline.options import Options, option_fields
from sightline.trace.watch import tracing

TYPES = {bool: "true, false", int: "integer", float: "number", str: "text"}
OTHERS: list[tuple[str, str, type[Options]]] = [
    (
        "Of a search",
        "Arguments of `engine.translate`, fields of HTTP requests, and `sightline translate --set option=value`.",
        SearchConfig,
    ),
    (
        "Of texts",
        "Arguments of `engine.translate` and fields of HTTP requests, next to those of a search.",
        TextConstraints,
    ),
    (
        "Of a continuation",
        "Arguments of `writer.complete` and options of `sightline complete`, next to those of a search.",
        CompletionOptions,
    ),
    ("Of loading a model", "Arguments of `sightline.load`, and options of the commands that load models.", LoadOptions),
    ("Of a shortlist", "Options of `sightline shortlist`.", ShortlistOptions),
    ("Of the service", "For `sightline serve --set option=value`.", ServeConfig),
]
"""Title, use and group of the options outside of runs."""
NOTE = "<!-- Written by docs/generate.py from the code; edit the code instead. -->\n\n"


def config() -> str:
    """Return the page of the options."""
    lines = [
        "# Options\n",
        "Of models and their training; `sightline config explain` prints them, with the values of a preset or a file.",
        f"Below: {', '.join(f'[{title[0].lower()}{title[1:]}](#{_anchor(title)})' for title, *_ in OTHERS)}.\n",
        *_options(Config),
    ]
    for title, text, group in OTHERS:
        lines += [f"\n## {title}\n", f"{text}\n", *_options(group)]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _options(group: type[Options]) -> Iterator[str]:
    yield from ("| option | default | values | meaning |", "|---|---|---|---|")
    for name, field in option_fields(group):
        help_text = " ".join((field.description or "").split())
        values = _type(field.annotation)
        limits = ", ".join(filter(None, map(_limit, field.metadata)))
        default = "" if field.default is None else f"`{_plain(field.default)}`"
        yield _row(f"`{name}`", default, f"{values} {limits}".strip(), help_text)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(annotation: Any) -> str:
    parts, kind = get_args(annotation), get_origin(annotation)
    if kind is Literal:
        return ", ".join(f"`{_plain(part)}`" for part in parts)
    if kind is Annotated:
        return _type(parts[0])
    if kind is tuple:
        return f"{len(parts)} × {_type(parts[0])}"
    return ", ".join(_type(part) for part in parts if part is not NoneType) if parts else TYPES[annotation]


def _limit(limit: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return ", ".join(f"{sign} {getattr(limit, name):,}" for name, sign in signs.items() if hasattr(limit, name))


def cli() -> str:
    """Every command with its help text."""
    lines = ["# Command line\n", "Results go to stdout, everything else to stderr.", ""]
    lines += ["Exit 0: done. 2: the user's mistake, in one sentence. 1: ours.", ""]
    for path, command in _commands("sightline", typer.main.get_command(app)):
        lines += [f"## `{path}`\n", " ".join((command.help or "").split()), ""]
        shown = [p for p in command.params if p.name != "help"]
        if shown:
            lines += ["| option | default | meaning |", "|---|---|---|", *(_parameter(command, p) for p in shown), ""]
    return "\n".join(lines).rstrip() + "\n"


def _parameter(command: Any, parameter: Any) -> str:
    """The row of an argument or an option."""
    kind = get_type_hints(command.callback)[parameter.name]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    flag = parameter.opts[0] if parameter.secondary_opts else ""
    names = [parameter.name.upper()] if parameter.param_type_name == "argument" else parameter.opts
    return _row(
        ", ".join(f"`{name}`" for name in (*names, *parameter.secondary_opts)),
        "required" if parameter.required else _default(parameter.default, flag),
        " ".join([*(getattr(parameter, "help", None) or "").split(), *_choices(choices)]),
    )


def _default(value: Any, flag: str) -> str:
    """Return the default of an option: of a flag that is on by default, its name; of one that is off, nothing."""
    if value is True:
        return f"`{flag}`"
    return f"`{value}`" if isinstance(value, str | int | float | Path) and value is not False else ""


def _choices(values: tuple[str, ...]) -> list[str]:
    """Return a sentence of the values of an option, if they are listed."""
    return [f"One of {', '.join(f'`{value}`' for value in values[:-1])} and `{values[-1]}`."] if values else []


def _commands(path: str, command: Any) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(f"{path} {name}", inner)


def api() -> str:
    """Return the page of the public names: those of `sightline`, its packages and its modules."""
    found, index = [], []
    shown: set[Any] = set()
    names = [name for _, name, _ in pkgutil.iter_modules(sightline.__path__, "sightline.")]
    modules = [importlib.import_module(name) for name in ("sightline", *names)]
    exported = [{name: getattr(module, name) for name in getattr(module, "__all__", ())} for module in modules]
    everything = set().union(*(public.values() for public in exported))
    for module, public in zip(modules, exported, strict=True):
        new = {name: thing for name, thing in public.items() if thing not in shown}
        shown |= set(new.values())
        if not new:
            continue
        title, about = module.__name__, inspect.cleandoc(module.__doc__ or "")
        index.append(f"- [`{title}`](#{title.replace('.', '')}): " + ", ".join(f"`{name}`" for name in new))
        found += [f"## `{title}`\n", about, "", "| name | |", "|---|---|"]
        found += [_row(f"`{name}`", _summary(thing)) for name, thing in new.items()]
        if elsewhere := [f"`{name}`" for name in public if name not in new]:
            found += ["", f"And, described above: {', '.join(elsewhere)}."]
        found.append("")
        for name, thing in new.items():
            found += _public(title, name, thing, everything)
    lines = ["# Python\n", "These names are public; all others may change.", "", *index, "", *found]
    return "\n".join(lines).rstrip() + "\n"


def _summary(thing: Any) -> str:
    """Return the first sentence of a docstring."""
    text = " ".join(inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[^.])\. (?=[A-Z`])|: (?=`)", text)[0].removesuffix(".") + "."


def _public(module: str, name: str, thing: Any, everything: set[Any]) -> list[str]:
    """Return the signature and docstring of a function, or those of a class with its fields and methods."""
    node: Any = ast.parse(inspect.getsource(thing)).body[0]
    if isinstance(node, ast.FunctionDef):
        return [f"### `{module}.{name}`\n", f"```text\n{_signature(node)}\n```\n", _docstring(node), ""]
    parts = [*zip(node.body, [*node.body[1:], None], strict=True)]
    made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    lines = [f"### `{module}.{name}`\n"]
    lines += [f"```text\n{_signature(one, name)}\n```\n" for one in made]
    lines += ["\n\n".join(filter(None, [_docstring(node), *map(_docstring, made)])), ""]
    lines += [f"It also has what `{base.__name__}` has.\n" for base in thing.__bases__ if base in everything]
    if issubclass(thing, Options):
        return [*lines, "Its fields are [options](config.md).", ""]
    rows = []
    for part, after in parts:
        if isinstance(part, ast.AnnAssign) and part.target.id[0] != "_":
            text = inspect.cleandoc(after.value.value) if _is_text(after) else ""
            rows.append(_item(part.target.id, text))
        elif isinstance(part, ast.FunctionDef) and part.name[0] != "_":
            rows.append(_item(part.name if _is_property(part) else _signature(part), _docstring(part)))
    return [*lines, *rows, ""] if rows else lines


def _docstring(node: Any) -> str:
    return ast.get_docstring(node) or ""


def _item(name: str, text: str) -> str:
    """Return a field or method as an item of a list, with the paragraphs of its docstring."""
    return textwrap.indent(f"`{name}`" + f": {text}" * bool(text), "  ").replace("  ", "- ", 1)


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(one) in ("property", "cached_property") for one in node.decorator_list)


def _signature(node: ast.FunctionDef, name: str = "") -> str:
    """Return a signature of the source without its types."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in filter(None, every):
        argument.annotation = None
    for own in (arguments.posonlyargs, arguments.args):
        own[:] = [a for a in own if a.arg not in ("self", "cls")]
    return f"{name or node.name}({ast.unparse(arguments)})"


def trace_names() -> str:
    """Return the page of the names in a real trace."""
    stack = {"layers": 1, "heads": 2, "d_ff": 6}
    model = build(ModelConfig(vocab_size=9, d_model=8, encoder=stack, decoder=stack)).eval()
    with torch.no_grad(), tracing(model) as trace:
        model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))
    lines = [
        "# Names in a trace\n",
        "The names of an encoder-decoder of one layer each, in the order in which they are computed. Deeper models",
        "have `layers.1`, `layers.2`, …; decoder-only and encoder-only models have their one stack.",
        "`trace.sentence(i)` has no `batch` axis. In encoder-decoder attention the queries are the target's positions",
        "and the keys the source's.\n",
        "| name | axes |",
        "|---|---|",
        *(f"| `{name}` | {', '.join(trace[name].axes)} |" for name in trace.names()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all pages into docs/reference, or into the folder that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reference"
    for page, text in {"config": config(), "cli": cli(), "api": api(), "trace-names": trace_names()}.items():
        (folder / f"{page}.md").write_text(NOTE + text)


if __name__ == "__main__":
    main()

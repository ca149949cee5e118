"""Groups of options: validation with readable errors, loading, and help texts.

Options are combined as `preset < file.toml < --set a.b=c`; the later wins. Unknown names are errors, and all errors are
reported together.
"""

import difflib
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from sightline.errors import ConfigError


class ConflictError(ValueError):
    """Raised by a validator: an option whose value does not fit another option.

    The problem writes other options in backticks, by their names within the group.
    """

    def __init__(self, option: str, value: object, problem: str) -> None:
        super().__init__(f"`{option}` {problem}")
        self.option, self.value = option, value


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name


class _RaisesConfigError(ModelMetaclass):
    def __call__(self, /, **values: Any) -> Any:
        try:
            return super().__call__(**values)
        except ValidationError as error:
            raise _config_error(error, cast("type[Options]", self)) from None


class Options(BaseModel, metaclass=_RaisesConfigError):
    """A group of options. Instances are frozen; unknown names and invalid values raise a ConfigError."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )


Group = TypeVar("Group", bound=Options)


def presets() -> dict[str, dict[str, Any]]:
    """Return the bundled configurations by name."""
    files = sorted((Path(__file__).parent / "presets").glob("*.toml"))
    return {file.stem: tomllib.loads(file.read_text("utf-8")) for file in files}


def load_options(
    group: type[Group],
    values: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    sets: Iterable[str] = (),
) -> Group:
    """Return the options `values`, overridden by the preset, then the TOML file, then each `a.b=c` of `sets`."""
    merged: dict[str, Any] = dict(values or {})
    if preset is not None:
        known = presets()
        if preset not in known:
            hint = _did_you_mean(preset, known) or f" Known presets: {', '.join(known)}."
            raise ConfigError(f"Unknown `preset`: {preset!r}.{hint}", option="preset", value=preset)
        _merge(merged, known[preset])
    if file is not None:
        try:
            _merge(merged, tomllib.loads(Path(file).read_text("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: cannot be read as TOML: {error}.", value=file) from None
    for assignment in sets:
        _merge(merged, _parse_set(assignment))
    return group(**merged)


def option_fields(group: type[Options], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name and the field of every option, in the order of their declarations."""
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            yield from option_fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def as_toml(config: Options, path: str = "") -> str:
    """Return all options as TOML, each after a comment with its help text."""
    lines, groups = [f"[{path}]"] if path else [], []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Options):
            groups.append(as_toml(value, f"{path}.{name}".lstrip(".")))
            continue
        lines += textwrap.wrap(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"# {name} =" if value is None else f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *([""] if lines else []), *groups])


def _parse_set(assignment: str) -> dict[str, Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError.of(
            "set", assignment, f"must have the form group.option=value (model.d_model=256), got {assignment!r}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean `{prefix}{close[0]}`?" if close else ""


def _config_error(error: ValidationError, group: type[Options]) -> ConfigError:
    """Return one error with a line for each wrong option; `option` and `value` are those of the first."""
    found: dict[str, tuple[object, str]] = {}
    for details in error.errors():
        path, owner = _path(details["loc"], group)
        value, kind, reason = details["input"], details["type"], details["msg"]
        conflict = details.get("ctx", {}).get("error")
        where, prefix = ".".join(path), "".join(f"{part}." for part in path)
        if isinstance(conflict, ConflictError):
            where, value = f"{prefix}{conflict.option}", conflict.value
            reason = re.sub(r"`(\w[\w.]*)`", rf"`{prefix}\1`", str(conflict))
        elif kind == "extra_forbidden":
            name, fields = str(details["loc"][-1]), owner.model_fields
            where = f"{prefix}{name}"
            deeper = [option for option, _ in option_fields(owner) if option.endswith(f".{name}")]
            hint = f" Did you mean `{prefix}{deeper[0]}`?" if deeper else _did_you_mean(name, fields, prefix)
            reason = f"Unknown option `{where}`." + (hint or f" Known options: {', '.join(fields)}.")
        elif kind == "model_type":
            reason = f"`{where}` is a group of options, got {value!r}. Set `{prefix}{next(iter(owner.model_fields))}`."
        elif where in found:  # a union: another type that the option could have
            reason = found[where][1].replace(", got ", f" or {reason.removeprefix('Input should be ')}, got ", 1)
        else:
            reason = f"`{where}` {re.sub('^[A-Z][a-z]+ should', 'must', reason)}, got {value!r}."
        found[where] = (value, reason)
    option, (value, _) = next(iter(found.items()))
    return ConfigError("\n".join(line for _, line in found.values()), option=option, value=value)


def _path(location: tuple[int | str, ...], group: type[Options]) -> tuple[list[str], type[Options]]:
    """Return the part of an error's location that names options, and the group at its end."""
    path = []
    for part in location:
        field = group.model_fields.get(str(part))
        if field is None:
            break
        path.append(str(part))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            group = field.annotation
    return path, group

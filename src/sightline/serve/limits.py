"""Limits of requests, and the checks of the parts that have them. Operators set those of `ServeConfig`."""

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.config import SearchConfig, ServeConfig
from sightline.engine import Plan
from sightline.serve.problems import Problem
from sightline.serve.schemas import SearchOptions, WhatIf

MAX_HEAD = 65_536
"""Largest request line with headers, in bytes."""
MAX_PACKED = 32_000_000
"""Largest answer with several tensors, in bytes."""


def caps(config: ServeConfig) -> dict[str, float]:
    """Return the caps of the options of a search: `max_beams` caps `beams`, `max_ratio` caps `max_ratio`."""
    names = {option: option if option.startswith("max_") else f"max_{option}" for option in SearchConfig.model_fields}
    return {option: getattr(config, cap) for option, cap in names.items() if cap in ServeConfig.model_fields}


def search_options(body: SearchOptions, config: ServeConfig) -> SearchConfig:
    """Return the options of a search. Defaults are capped, explicit values above their caps are refused, and `beams` is
    at least `nbest`."""
    limits, options = caps(config), {name: getattr(body, name) for name in SearchConfig.model_fields}
    for name in limits.keys() - body.model_fields_set:
        options[name] = min(options[name], limits[name])
    options["beams"] = max(options["beams"], options["nbest"])
    for name, most in limits.items():
        if options[name] > most:
            raise Problem("invalid", f"`{name}` must be at most {most:g}, got {options[name]:g}.")
    return SearchConfig(**options)


def check_texts(texts: Sequence[str], config: ServeConfig) -> None:
    """Limit the texts of a request and their characters."""
    for count, most, unit in (
        (len(texts), config.max_texts, "texts"),
        (sum(map(len, texts)), config.max_characters, "characters"),
    ):
        if count > most:
            raise Problem("too-large", f"{count} {unit} are more than {most}. Split the request.")


def check_plan(plan: Plan[Any], config: ServeConfig) -> None:
    """Limit the tokens of a search."""
    tokens = sum(request.size for request in plan.requests) * plan.options.beams
    if tokens > config.max_tokens:
        detail = f"{tokens} tokens, counted once per beam, are more than {config.max_tokens}. Send less text."
        raise Problem("too-large", detail)


def check_what_if(what_if: WhatIf | None, config: ServeConfig) -> None:
    """Limit the changes of a request."""
    if what_if and what_if.edits > config.max_edits:
        detail = (
            f"`what_if` changes {what_if.edits} parts, heads and cells, more than {config.max_edits}. Change fewer."
        )
        raise Problem("too-large", detail)


def check_tokens(config: ServeConfig, **fields: Sequence[list[int]]) -> None:
    """Limit the tokens of texts that are computed in one step. `fields`: their ids by the names of their fields."""
    for name, texts in fields.items():
        length = max(map(len, texts), default=0)
        if length > config.max_traced:
            raise Problem("too-large", f"`{name}` has {length} tokens, more than {config.max_traced}. Send less text.")


def check_packed(size: int) -> None:
    """Limit the bytes of tensors in one answer."""
    if size > MAX_PACKED:
        detail = f"The tensors have {size} bytes, more than {MAX_PACKED}. Request fewer, or single tensors in pieces."
        raise Problem("too-large", detail)


def describe(schemas: Mapping[str, Any], config: ServeConfig) -> None:
    """Add the limits to the schemas of the OpenAPI document."""
    limits = caps(config)
    lists = {"text": config.max_texts, "q": config.max_texts, "pairs": config.max_texts // 2}
    for schema in schemas.values():
        for name, about in schema.get("properties", {}).items():
            if name in limits and "default" in about:
                about["maximum"] = min(about.get("maximum", limits[name]), limits[name])
                about["default"] = min(about["default"], limits[name])
            for part in [about, *about.get("anyOf", [])]:
                if part.get("type") == "array" and name in lists:
                    part["maxItems"] = lists[name]

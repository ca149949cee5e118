"""The trace format: a trace as bytes that a page, a notebook or another program can read piece by piece.

docs/reference/trace.md specifies it. A manifest in JSON lists the tensors; their numbers follow as little-endian
buffers, so that a reader loads only the tensors it needs, in pieces of at most a million bytes.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import TraceError
from sightline.trace.lineage import Step
from sightline.trace.trace import Trace

MAGIC = b"SIGHTLN\x01"
HEADER = struct.Struct("<8sQ")  # magic, bytes of manifest
ALIGNMENT = 8
PIECE = 1_000_000
"""Bytes of a piece of a tensor that is sent in messages."""
DTYPES: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}


def pack_trace(
    trace: Trace, names: Iterable[str] | None = None, *, dtype: str = "f32", about: Mapping[str, Any] | None = None
) -> bytes:
    """Return the named tensors of a trace (by default all) as bytes.

    `dtype` is "f32" or "f16"; a tensor whose values exceed half precision stays "f32". `about` is JSON for the
    manifest, for example the model's configuration or the steps of a search."""
    if dtype not in DTYPES:
        raise TraceError.of("dtype", dtype, f"must be {' or '.join(DTYPES)}, got {dtype!r}.")
    if isinstance(names, str):
        raise TraceError.of("names", names, f"must be a list, [{names!r}], got a string.")
    description = {**manifest(trace, names), "about": dict(about or {})}
    buffers: list[bytes] = []
    offset = 0
    for tensor in description["tensors"]:
        kind, data = numbers(trace[tensor["name"]].numpy(), dtype)
        tensor |= {"dtype": kind, "offset": offset, "bytes": len(data)}
        buffers.append(data + b"\0" * (-len(data) % ALIGNMENT))
        offset += len(buffers[-1])
    try:
        text = json.dumps(description, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise TraceError.of("about", None, f"must be JSON: {error}.") from None
    text += b" " * (-(HEADER.size + len(text)) % ALIGNMENT)
    return b"".join([HEADER.pack(MAGIC, len(text)), text, *buffers])


def manifest(trace: Trace, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the description of a trace and the named tensors, by default all: the same in a file and over HTTP."""
    return {
        "version": 1,
        "model": trace.model,
        "config": trace.config,
        "parts": trace.parts,
        "tokens": trace.tokens,
        "ids": trace.ids,
        "stacks": trace.stacks,
        "tensors": [_tensor(trace, name) for name in (trace.names() if names is None else names)],
    }


def _tensor(trace: Trace, name: str) -> dict[str, Any]:
    sizes, step = trace.sizes(name), trace.lineage.get(name)
    lineage = {"lineage": step.manifest()} if step else {}
    return {"name": name, "axes": list(sizes), "shape": list(sizes.values()), "sides": trace.sides(name), **lineage}


def numbers(values: NDArray[np.float32], dtype: str) -> tuple[str, bytes]:
    """Return the type of the numbers, "f32" or "f16", and their bytes, row by row."""
    finite = values[np.isfinite(values)]
    if dtype == "f16" and finite.size and np.abs(finite).max() > np.finfo(np.float16).max:
        dtype = "f32"
    return dtype, np.ascontiguousarray(values, DTYPES[dtype]).tobytes()


def read_trace(source: Path | str | bytes | bytearray) -> "PackedTrace":
    """Open a packed trace. Only the manifest of a file is read at first; each tensor is read when it is used."""
    if isinstance(source, bytes | bytearray):
        return PackedTrace(np.frombuffer(source, np.uint8), "The data")
    try:
        data = np.memmap(source, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise TraceError(f"{source}: the file cannot be read: {error}.", value=source) from None
    return PackedTrace(data, str(source))


class PackedTrace(Trace):
    """A packed trace. Each tensor is read when it is used."""

    def __init__(self, data: NDArray[np.uint8], where: str) -> None:
        head = data[: HEADER.size].tobytes()
        if len(head) < HEADER.size or not head.startswith(MAGIC[:-1]):
            raise TraceError(f"{where} is not a Sightline trace.", value=where)
        magic, length = HEADER.unpack(head)
        if magic != MAGIC:
            raise TraceError(f"{where} has trace version {magic[-1]}. Only version 1 is supported.", value=where)
        start = HEADER.size + length
        try:
            manifest = json.loads(data[HEADER.size : start].tobytes())
            entries = list(manifest["tensors"])
            super().__init__(dict(manifest["tokens"]), dict(manifest.get("ids", {})))
            self.about: dict[str, Any] = dict(manifest["about"])
            self.model, self.parts = str(manifest.get("model", "")), int(manifest.get("parts", 1))
            self.config, self.stacks = dict(manifest.get("config", {})), list(manifest.get("stacks", []))
            self.lineage = {entry["name"]: Step.read(entry["lineage"]) for entry in entries if "lineage" in entry}
            sound = manifest["version"] == 1 and all(map(_is_sound, entries))
            whole = all(entry["offset"] + entry["bytes"] <= len(data) - start for entry in entries)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sound = whole = False
        if not sound:
            raise TraceError(f"{where}: the manifest is damaged.", value=where)
        if not whole:
            raise TraceError(f"{where}: the file is truncated.", value=where)
        self._data = data[start:]
        for entry in entries:
            self.defer(entry["name"], tuple(entry["axes"]), entry["shape"], partial(self._values, entry))

    def _values(self, entry: Mapping[str, Any]) -> Tensor:
        data = self._data[entry["offset"] : entry["offset"] + entry["bytes"]].tobytes()
        values = np.frombuffer(data, DTYPES[entry["dtype"]]).astype(np.float32)
        return torch.from_numpy(values.reshape(entry["shape"]))


def _is_sound(entry: Mapping[str, Any]) -> bool:
    """Return whether the manifest's entry of a tensor is consistent."""
    shape, axes, offset = entry["shape"], entry["axes"], entry["offset"]
    numbers = all(type(number) is int and number >= 0 for number in (*shape, offset))
    words = len(axes) == len(shape) and all(isinstance(axis, str) for axis in axes)
    return numbers and words and bool(math.prod(shape) * DTYPES[entry["dtype"]].itemsize == entry["bytes"])

"""The trace format: a trace as bytes that a page, a notebook or another program can read piece by piece.

docs/reference/trace.md specifies it. A manifest in JSON lists the tensors; their numbers follow as little-endian
buffers, so that a reader loads only the tensors it needs, in pieces of at most a million bytes.
"""

import io
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import TraceError
from sightline.trace.trace import Trace, Traced, labels

MAGIC = b"SIGHTLN\x01"
HEADER = struct.Struct("<8sQ")  # magic, bytes of manifest
ALIGNMENT = 8
PIECE = 1_000_000
DTYPES: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}


def pack(
    trace: Trace, names: Iterable[str] | None = None, *, dtype: str = "f32", about: Mapping[str, Any] | None = None
) -> bytes:
    """Return the named tensors of a trace (by default all) as bytes.

    `dtype` is "f32" or "f16"; a tensor whose values exceed half precision stays "f32". `about` is JSON for the
    manifest, for example the model's configuration or the steps of a search."""
    buffer = io.BytesIO()
    write(trace, buffer, names, dtype=dtype, about=about)
    return buffer.getvalue()


def write(
    trace: Trace,
    to: io.BufferedIOBase,
    names: Iterable[str] | None = None,
    *,
    dtype: str = "f32",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the bytes of `pack` to an open binary file."""
    if dtype not in DTYPES:
        message = f"`dtype` must be {' or '.join(DTYPES)}, got {dtype!r}."
        raise TraceError(message, option="dtype", value=dtype)
    if isinstance(names, str):
        raise TraceError.of("names", names, f"must be a list, [{names!r}], got a string.")
    tensors: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    offset = 0
    for name in trace.names() if names is None else names:
        traced = trace[name]
        kind, data = numbers(traced.numpy(), dtype)
        entry = {"name": name, "axes": list(traced.axes), "shape": list(traced.values.shape), "dtype": kind}
        tensors.append({**entry, "offset": offset, "bytes": len(data)})
        buffers.append(data + b"\0" * (-len(data) % ALIGNMENT))
        offset += len(buffers[-1])
    manifest = {"version": 1, "tokens": trace.tokens, "about": dict(about or {}), "tensors": tensors}
    try:
        text = json.dumps(manifest, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise TraceError.of("about", None, f"must be JSON: {error}.") from None
    text += b" " * (-(HEADER.size + len(text)) % ALIGNMENT)
    to.write(HEADER.pack(MAGIC, len(text)))
    to.write(text)
    to.writelines(buffers)


def numbers(values: NDArray[np.float32], dtype: str) -> tuple[str, bytes]:
    """Return the type of the numbers, "f32" or "f16", and their bytes, row by row."""
    finite = values[np.isfinite(values)]
    if dtype == "f16" and finite.size and np.abs(finite).max() > np.finfo(np.float16).max:
        dtype = "f32"
    return dtype, np.ascontiguousarray(values, DTYPES[dtype]).tobytes()


def read(source: Path | str | bytes | bytearray) -> "PackedTrace":
    """Open a packed trace. Only the manifest of a file is read at first; each tensor is read when it is used."""
    if isinstance(source, bytes | bytearray):
        return PackedTrace(np.frombuffer(source, np.uint8), "The data")
    try:
        data = np.memmap(source, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise TraceError(f"{source}: the file cannot be read: {error}.", value=source) from None
    return PackedTrace(data, str(source))


class PackedTrace:
    """A packed trace, read lazily: names, tensors by name, tokens, and `about` as written."""

    def __init__(self, data: NDArray[np.uint8], where: str) -> None:
        head = data[: HEADER.size].tobytes()
        if len(head) < HEADER.size or not head.startswith(MAGIC[:-1]):
            raise TraceError(f"{where} is not a Sightline trace.", value=where)
        magic, length = HEADER.unpack(head)
        if magic != MAGIC:
            raise TraceError(f"{where} has trace version {magic[-1]}. Only version 1 is supported.", value=where)
        start = HEADER.size + length
        try:
            self.manifest: dict[str, Any] = json.loads(data[HEADER.size : start].tobytes())
            self._tensors = {entry["name"]: entry for entry in self.manifest["tensors"]}
            self.tokens: dict[str, list[str]] = dict(self.manifest["tokens"])
            self.about: dict[str, Any] = dict(self.manifest["about"])
            sound = self.manifest["version"] == 1 and all(_is_sound(entry) for entry in self._tensors.values())
            whole = all(entry["offset"] + entry["bytes"] <= len(data) - start for entry in self._tensors.values())
        except (ValueError, KeyError, TypeError, RecursionError):
            sound = whole = False
        if not sound:
            raise TraceError(f"{where}: the manifest is damaged.", value=where)
        if not whole:
            raise TraceError(f"{where}: the file is truncated.", value=where)
        self._data = data[start:]

    def names(self) -> list[str]:
        return list(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Traced:
        entry = self._entry(name)
        data = self._data[entry["offset"] : entry["offset"] + entry["bytes"]].tobytes()
        values = np.frombuffer(data, DTYPES[entry["dtype"]]).astype(np.float32).reshape(entry["shape"])
        axes = tuple(entry["axes"])
        return Traced(name, axes, torch.from_numpy(values), labels(name, axes, values.shape, self.tokens))

    def pieces(self, name: str) -> int:
        """Return the number of pieces of a tensor."""
        return math.ceil(self._entry(name)["bytes"] / PIECE)

    def piece(self, name: str, index: int) -> bytes:
        """Return the bytes of one piece of a tensor. All pieces but the last have the same size."""
        entry = self._entry(name)
        if not 0 <= index < self.pieces(name):
            message = f"`index` must be less than {self.pieces(name)}, the pieces of {name}, got {index}."
            raise TraceError(message, option="index", value=index)
        first = entry["offset"] + index * PIECE
        return self._data[first : min(first + PIECE, entry["offset"] + entry["bytes"])].tobytes()

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self._tensors:
            raise TraceError(f"The trace has no tensor {name!r}. See `trace.names()`.", value=name)
        entry: dict[str, Any] = self._tensors[name]
        return entry


def _is_sound(entry: Mapping[str, Any]) -> bool:
    """Return whether the manifest's entry of a tensor is consistent."""
    shape, axes, offset = entry["shape"], entry["axes"], entry["offset"]
    numbers = all(type(number) is int and number >= 0 for number in (*shape, offset))
    words = len(axes) == len(shape) and all(isinstance(axis, str) for axis in axes)
    return numbers and words and bool(math.prod(shape) * DTYPES[entry["dtype"]].itemsize == entry["bytes"])

"""The trace format: a trace as bytes that a page, a notebook or another program can read piece by piece.

docs/reference/trace.md specifies it. A manifest in JSON says what there is; the numbers follow as plain little-endian
buffers, so a reader takes only what it wants to show, in pieces of at most a million bytes.
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

__all__ = ["PIECE", "PackedTrace", "numbers", "pack", "read", "write"]

MAGIC = b"SIGHTLN\x01"
HEADER = struct.Struct("<8sQ")  # magic, bytes of manifest
ALIGNMENT = 8
PIECE = 1_000_000
DTYPES: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}


def pack(
    trace: Trace, names: Iterable[str] | None = None, *, dtype: str = "f32", about: Mapping[str, Any] | None = None
) -> bytes:
    """The named tensors of a trace (all of them by default) as one block of bytes.

    `dtype` is "f32" or "f16"; a tensor that half precision cannot hold stays "f32". `about` goes into the manifest as
    it is: the model's configuration, the steps of a search, whatever a reader should know."""
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
    """Like `pack`, into an open binary file."""
    if dtype not in DTYPES:
        raise TraceError(f"a trace is packed as {' or '.join(DTYPES)}, not {dtype!r}.")
    if isinstance(names, str):
        raise TraceError(f"the tensors to pack are named in a list: [{names!r}].")
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
        raise TraceError(f"what is said about a trace must be JSON: {error}.") from None
    text += b" " * (-(HEADER.size + len(text)) % ALIGNMENT)
    to.write(HEADER.pack(MAGIC, len(text)))
    to.write(text)
    to.writelines(buffers)


def numbers(values: NDArray[np.float32], dtype: str) -> tuple[str, bytes]:
    """The plain numbers of a tensor, row by row, and whether they are "f32" or "f16"."""
    finite = values[np.isfinite(values)]
    if dtype == "f16" and finite.size and np.abs(finite).max() > np.finfo(np.float16).max:
        dtype = "f32"
    return dtype, np.ascontiguousarray(values, DTYPES[dtype]).tobytes()


def read(source: Path | str | bytes | bytearray) -> "PackedTrace":
    """Open a packed trace. Of a file, only the manifest is read; the tensors follow when they are asked for."""
    if isinstance(source, bytes | bytearray):
        return PackedTrace(np.frombuffer(source, np.uint8), "the trace")
    try:
        data = np.memmap(source, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise TraceError(f"{source}: cannot be read as a trace: {error}.") from None
    return PackedTrace(data, str(source))


class PackedTrace:
    """A packed trace, read lazily: names, tensors by name, words, and what the writer said about it."""

    def __init__(self, data: NDArray[np.uint8], where: str) -> None:
        head = data[: HEADER.size].tobytes()
        if len(head) < HEADER.size or not head.startswith(MAGIC[:-1]):
            raise TraceError(f"{where}: this is not a Sightline trace.")
        magic, length = HEADER.unpack(head)
        if magic != MAGIC:
            raise TraceError(f"{where}: this is a trace of version {magic[-1]}, and only version 1 is known here.")
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
            raise TraceError(f"{where}: the trace's manifest is damaged.")
        if not whole:
            raise TraceError(f"{where}: the trace is cut short.")
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
        """In how many pieces this tensor travels."""
        return math.ceil(self._entry(name)["bytes"] / PIECE)

    def piece(self, name: str, index: int) -> bytes:
        """The bytes of one piece of a tensor; all pieces but the last have the same size."""
        entry = self._entry(name)
        if not 0 <= index < self.pieces(name):
            raise TraceError(f"{name} has {self.pieces(name)} pieces, and no piece {index}.")
        first = entry["offset"] + index * PIECE
        return self._data[first : min(first + PIECE, entry["offset"] + entry["bytes"])].tobytes()

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self._tensors:
            raise TraceError(f"the trace has no {name!r}; trace.names() lists what it has.")
        entry: dict[str, Any] = self._tensors[name]
        return entry


def _is_sound(entry: Mapping[str, Any]) -> bool:
    """Whether the manifest's words about a tensor agree with each other."""
    shape, axes, offset = entry["shape"], entry["axes"], entry["offset"]
    numbers = all(type(number) is int and number >= 0 for number in (*shape, offset))
    words = len(axes) == len(shape) and all(isinstance(axis, str) for axis in axes)
    return numbers and words and bool(math.prod(shape) * DTYPES[entry["dtype"]].itemsize == entry["bytes"])

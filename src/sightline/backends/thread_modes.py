"""The faster way to use the threads of CTranslate2: all threads on one batch, or one batch per thread.

Which one is faster depends on the processor, the model, its precision, the batch size and the beam size, and the two
can differ by a factor of 2. So both are measured, on the first batches of a process that searches for long enough. The
result is kept in the user's cache. The answers do not depend on it.
"""

import json
import os
import platform
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from statistics import median
from typing import Literal

from sightline.errors import CheckpointError
from sightline.files import locked, read_json_object, write_files

ThreadMode = Literal["intra", "inter"]
"""CTranslate2's names. intra: all threads compute one batch. inter: each thread computes a batch of its own."""

MEASURE_AFTER = 2.0
"""Seconds of searches of a kind before it is measured, or before a second copy of the model is loaded for it. A short
call never pays for either."""
BATCHES, SECONDS = 6, 1.0
"""Each mode is measured for at least this many batches and this long."""
WORTH = 0.98
"""The other mode is chosen if it takes less than this fraction of the time."""
LARGEST = 64
"""Sentences of a batch from which the size no longer matters."""


def batch_kind(beams: int, sentences: int) -> str:
    """Return the name of the batches that are measured together: by beam size and, in powers of 2, by sentences."""
    return f"beams {beams}, batch {min(1 << (sentences.bit_length() - 1), LARGEST)}"


class Measurement:
    """Times of one kind of batches in this process."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.batches: dict[ThreadMode, list[tuple[float, int]]] = {"intra": [], "inter": []}
        """Seconds and tokens of each batch; the first one of a mode does not count: it allocates memory."""

    def complete(self, mode: ThreadMode) -> bool:
        counted = [seconds for seconds, _ in self.batches[mode][1:]]
        return len(counted) >= BATCHES and sum(counted) >= SECONDS

    def rate(self, mode: ThreadMode) -> float:
        """Return the median of the seconds for a token."""
        return median(seconds / max(tokens, 1) for seconds, tokens in self.batches[mode][1:])


class ThreadModes:
    """The mode of each kind of batches. Safe to use from several threads."""

    def __init__(self, default: ThreadMode, machine: str, file: Path) -> None:
        """`default`: the mode before anything is measured. `machine`: the processor, number of threads, version and
        model that measurements are valid for. `file`: where they are kept."""
        self.default, self.machine, self.file = default, machine, file
        self._lock = threading.Lock()
        self._chosen: dict[str, ThreadMode] = {
            kind: mode for kind, mode in _read(file).get(machine, {}).items() if mode in ("intra", "inter")
        }
        self._measured: dict[str, Measurement] = {}
        self._only: ThreadMode | None = None

    @property
    def first(self) -> ThreadMode:
        """The mode to load the model for: that of most kinds."""
        counts = Counter(self._chosen.values())
        return self.default if counts["intra"] == counts["inter"] else counts.most_common(1)[0][0]

    def choose(self, kind: str, loaded: Collection[ThreadMode]) -> ThreadMode:
        """Return the mode for the next batch. `loaded`: modes whose copy of the model is in memory, at least one."""
        with self._lock:
            if self._only is not None:
                return self._only
            found = self._measured.setdefault(kind, Measurement())
            mode = self._chosen.get(kind, self.default)
            if found.spent < MEASURE_AFTER:
                return mode if mode in loaded else next(iter(loaded))
            if kind in self._chosen:
                return mode
            return _other(self.default) if found.complete(self.default) else self.default

    def record(self, kind: str, mode: ThreadMode, seconds: float, tokens: int) -> None:
        """Count a batch that was computed in `mode`; `tokens`: of sources and answers."""
        with self._lock:
            found = self._measured.setdefault(kind, Measurement())
            before, found.spent = found.spent, found.spent + seconds
            if kind in self._chosen or before < MEASURE_AFTER:
                return
            found.batches[mode].append((seconds, tokens))
            other = _other(self.default)
            if found.complete(self.default) and found.complete(other):
                faster = found.rate(other) < WORTH * found.rate(self.default)
                self._chosen[kind] = other if faster else self.default
                self._save()

    def keep(self, mode: ThreadMode) -> set[ThreadMode]:
        """Return the modes whose copy of the model to keep in memory. `mode`: that of the next batch, and the only one
        while it is measured, because the threads of another copy would slow it down."""
        with self._lock:
            used = [kind for kind, found in self._measured.items() if found.spent >= MEASURE_AFTER]
            if self._only is not None or any(kind not in self._chosen for kind in used):
                return {mode}
            return {mode, *(self._chosen[kind] for kind in used)} if used else {"intra", "inter"}

    def restrict(self, mode: ThreadMode) -> None:
        """Use one mode only, from now on."""
        with self._lock:
            self._only = mode

    def _save(self) -> None:
        """Add this model's entries to the file. Without a cache, the process measures for itself."""
        try:
            with locked(self.file):
                kept = _read(self.file)
                kept[self.machine] = {**kept.get(self.machine, {}), **self._chosen}
                write_files(self.file.parent, {self.file.name: json.dumps(kept, indent=2).encode()})
        except CheckpointError:
            pass


def processor() -> str:
    """Return the model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, ValueError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"


def _other(mode: ThreadMode) -> ThreadMode:
    return "inter" if mode == "intra" else "intra"


def _read(file: Path) -> dict[str, dict[str, ThreadMode]]:
    """Return the entries of a file; none if it cannot be read."""
    try:
        found = read_json_object(file)
    except CheckpointError:
        return {}
    return {machine: kinds for machine, kinds in found.items() if isinstance(kinds, dict)}

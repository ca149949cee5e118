"""The training run that a reader of the page can start: one at a time, in its own process."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from sightline.model_folder import BUNDLED
from sightline.runs import TESTED, read_metrics
from sightline.serve.problems import Problem

Phase = Literal["none", "running", "finished", "stopped", "failed"]
STORED = BUNDLED / "coref" / "states"
"""States of a run in the past, until the reader starts one."""
STATE = re.compile(r"step-0*(\d+)")
NAME = re.compile(r"training@(\d+)")
"""Names of the states as models of the service."""
GRACE = 5
"""Seconds in which a run may save its state before it is killed."""


class Lesson:
    """The training run, its losses and its states."""

    def __init__(self, *, allowed: bool) -> None:
        """`allowed`: whether a run may be started. The stored states can always be read."""
        self.allowed = allowed
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self.run = 0
        """Number of runs that were started."""

    def start(self) -> None:
        """Start a run and forget the last one. If a run is in progress, leave it."""
        if not self.allowed:
            raise Problem("forbidden", "Training is off: the option `training` of this service is false.")
        if self.phase == "running":
            return
        self.close()
        self.run += 1
        self._folder, self._stopped = Path(tempfile.mkdtemp(prefix="sightline-training-")), False
        with (self._folder / "log.txt").open("wb") as log:
            command = [sys.executable, "-m", "sightline.train.lesson", str(self._folder)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603

    def stop(self) -> None:
        """Stop the run. Its states stay."""
        if self._process is not None and self._process.poll() is None:
            self._stopped = True
            self._process.terminate()

    def close(self) -> None:
        """Stop the run and delete its files."""
        self.stop()
        if self._process is not None:
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._process = None

    @property
    def phase(self) -> Phase:
        """What the run does."""
        if self._process is None:
            return "none"
        code = self._process.poll()
        if code is None:
            return "running"
        return "stopped" if self._stopped else "finished" if code == 0 else "failed"

    @property
    def steps(self) -> int:
        """The steps of a whole run; 0 if there is none."""
        try:
            return int((self._folder / "steps").read_text()) if self._folder is not None else 0
        except (OSError, ValueError):  # the process has just started
            return 0

    @property
    def losses(self) -> list[dict[str, Any]]:
        """The loss of each report, with its step."""
        if self._folder is None:
            return []
        lines = read_metrics(self._folder / "run")
        return [{"step": one["step"], "loss": one["loss"]} for one in lines if one["event"] == "progress"]

    def states(self) -> dict[int, Path]:
        """Return the model folders of the states by step: of the run, or the stored ones before the first run."""
        folder = STORED if self._folder is None else self._folder / "run" / TESTED
        found = ((STATE.fullmatch(path.name), path) for path in (folder.iterdir() if folder.exists() else ()))
        complete = {int(name[1]): path for name, path in found if name and (path / "model.safetensors").exists()}
        return dict(sorted(complete.items()))

    def folder(self, name: str) -> Path | None:
        """Return the folder of the state with this name as a model, if it exists."""
        found = NAME.fullmatch(name)
        return self.states().get(int(found[1])) if found else None

"""The exception tree.

    SightlineError
    ├── ConfigError
    ├── InputError
    ├── CheckpointError
    ├── TraceError
    └── TrainingError

A message has the problem, the value and a solution. Options are written as `beams`; the command line prints --beams.
"""

from typing import Self

__all__ = ["CheckpointError", "ConfigError", "InputError", "SightlineError", "TraceError", "TrainingError"]


class SightlineError(Exception):
    """An error that the user can fix. The command line prints it and exits with 2."""

    def __init__(self, message: str, *, option: str | None = None, value: object = None) -> None:
        """`option`: the option or parameter at fault, by its Python name; `value`: its value."""
        super().__init__(message)
        self.option, self.value = option, value

    @classmethod
    def of(cls, option: str, value: object, problem: str) -> Self:
        """Return an error about an option; its message is the name of the option and the problem."""
        return cls(f"`{option}` {problem}", option=option, value=value)


class ConfigError(SightlineError):
    """An option that is unknown, out of range, or in conflict with another."""


class InputError(SightlineError):
    """Invalid text, ids or arguments."""


class CheckpointError(SightlineError):
    """A model folder that is missing, damaged, or of another version."""


class TraceError(SightlineError):
    """A model that cannot be traced, or a trace that cannot be read."""


class TrainingError(SightlineError):
    """A training run that cannot continue."""

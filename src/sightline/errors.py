"""The exception tree. Every message is one sentence: what, where, and the way out."""

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InputError",
    "SightlineError",
    "TraceError",
    "TrainingError",
]


class SightlineError(Exception):
    """Anything the user can mend. The command line prints it and exits with 2."""


class ConfigError(SightlineError):
    """An option that is unknown, out of range, or at odds with another."""


class InputError(SightlineError):
    """Text, ids or arguments that cannot be worked on."""


class CheckpointError(SightlineError):
    """A model folder that is missing, damaged, or of another version."""


class TraceError(SightlineError):
    """A model that cannot be looked into, or a trace that cannot be read."""


class TrainingError(SightlineError):
    """A run that cannot go on."""

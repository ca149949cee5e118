"""Traces of a model's computation, and edits of its parts."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.trace.explain import Attribution, gradient_x_input, logit_lens, rollout, value_weighted
    from sightline.trace.pack import PackedTrace, pack_trace, read_trace
    from sightline.trace.trace import Trace, Traced
    from sightline.trace.watch import tracing

__all__ = [
    "Attribution",
    "PackedTrace",
    "Trace",
    "Traced",
    "gradient_x_input",
    "logit_lens",
    "pack_trace",
    "read_trace",
    "rollout",
    "tracing",
    "value_weighted",
]
__getattr__, __dir__ = lazy_exports(__name__)

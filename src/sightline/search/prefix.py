"""The cache of a prefix, kept between searches: a text that grew is read from where it differs from the last one.

Only models without an encoder, and searches that compute each step anew: a recorded search reads its text at once, in
one graph. The numbers of a step differ in the last digits with the number of positions that are read together. So a
search that began with kept keys counts as one with neighbours: if it meets a near tie, it is searched again without.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.model.cache import Cache
from sightline.search.types import Request

LEAST = 16
"""Fewer equal positions are not worth copying."""
MAX_ENTRIES = 8
MAX_BYTES = 256 * 2**20
"""Memory for all kept keys and values."""


class Kept(NamedTuple):
    """Keys and values of a text."""

    ids: list[int]
    keys: Float[Tensor, "layers heads positions d_k"]
    values: Float[Tensor, "layers heads positions d_k"]

    @property
    def bytes(self) -> int:
        """Return the memory that it takes."""
        return 2 * self.keys.numel() * self.keys.element_size()


class PrefixCache:
    """Keys and values of the texts that a model has read last. It is safe to use from several threads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: list[Kept] = []
        """The most recently used last."""
        self._weights = self._versions()
        self._lock = threading.Lock()

    def start(self, requests: Sequence[Request], beams: int, capacity: int) -> Cache | None:
        """Return the state of a model after the texts that the requests continue, from kept keys; None if they are not
        equal or there are none. `capacity`: as for `Decoding.start`."""
        given = requests[0].given[:-1]
        if any(one.given[:-1] != given for one in requests[1:]):
            return None
        with self._lock:
            length, kept = max(((_common(one.ids, given), one) for one in self._kept), key=_first, default=(0, None))
            if kept is None or length < LEAST:
                return None
            self._kept = [*(one for one in self._kept if one is not kept), kept]
        like = self._model.classifier.weight
        begun = Cache(self._model.config, 1, 1, len(given), like=like)
        for mine, theirs in ((begun.keys, kept.keys), (begun.values, kept.values)):
            mine[:, 0, :, :length] = theirs[:, :, :length]
        begun.lengths.fill_(length)
        begun.used = length
        if rest := given[length:]:
            self._model.decoder(torch.tensor([rest], device=like.device), None, [], begun)
        cache = Cache(self._model.config, len(requests), beams, capacity, like=like)
        for mine, theirs in ((cache.keys, begun.keys), (cache.values, begun.values)):
            mine[:, :, :, : len(given)] = theirs  # the same for all rows
        cache.lengths.fill_(len(given))
        cache.used = len(given)
        return cache

    def keep(self, request: Request, written: Sequence[int], cache: Cache) -> None:
        """Keep the keys of the first row of a cache: of the text of a request, and of what was written after it."""
        if not cache.uniform_length:
            return
        ids = [*request.given, *written][: cache.used]
        keys, values = (x[:, 0, :, : len(ids)].clone() for x in (cache.keys, cache.values))
        new = Kept(ids, keys, values)
        with self._lock:
            self._kept = [one for one in self._kept if _common(one.ids, ids) < len(one.ids)][1 - MAX_ENTRIES :]
            self._kept.append(new)
            while sum(one.bytes for one in self._kept) > MAX_BYTES:
                self._kept.pop(0)

    def clear(self) -> None:
        """Free the memory."""
        with self._lock:
            self._kept = []

    def usable(self, requests: Sequence[Request]) -> bool:
        """Return whether keys can be kept: not for an encoder, and not while hooks may change what the model computes.
        Forget those of other weights."""
        if requests[0].source or not isinstance(self._model, nn.Module) or torch.is_grad_enabled():
            return False
        if self.hooked():
            return False
        if (weights := self._versions()) != self._weights:
            self._weights = weights
            self.clear()
        return True

    def hooked(self) -> bool:
        """Return whether hooks may change what the model computes."""
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._model.modules())

    def _versions(self) -> list[tuple[int, int]]:
        """Return where each weight is, and how often it was changed there."""
        found = self._model.parameters() if isinstance(self._model, nn.Module) else ()
        return [(one.data_ptr(), one._version) for one in found]


def _first(pair: tuple[int, Kept]) -> int:
    return pair[0]


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of equal ids at the beginning."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(ids), len(others)))

"""Reorder the rows of token weights between the ids of another program ("native") and ours, which begin with the four
special tokens.

Answers stay the same: tokens that only our vocabulary has get a probability of 0.
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.model.transformer import EncoderDecoder, Model
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer

Kind = TypeVar("Kind", bound=Model)

EXCLUDED = -1e4
"""Bias of a token that no answer may contain: its probability is 0, and half precision can represent the bias."""
SOURCE, TARGET = "encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight"
CLASSIFIER, BIAS = "classifier.weight", "classifier.bias"


@torch.no_grad()
def to_internal_order(model: Kind, tokenizer: Tokenizer, start: int | None = None) -> Kind:
    """Return the model with the rows of its token weights in the order of our ids. `start`: the native id of the token
    that answers begin with, for a vocabulary without a start token; None if they begin with a zero vector."""
    weights = dict(model.state_dict())
    source = tokenizer if model.config.tie == "all" or SOURCE not in weights else tokenizer.source
    for name, side in ((SOURCE, source), (TARGET, tokenizer), (CLASSIFIER, tokenizer), (BIAS, tokenizer)):
        if name in weights:
            weights[name] = _reordered(weights[name], side, start)
    native = tokenizer.own_ids
    excluded = [i for i, number in enumerate(native) if number < 0 or (i != END and number == native[END])]
    if native[PAD] >= 0 and SOURCE in weights and TARGET in weights and _has_zero_padding(weights):
        excluded.append(PAD)
    if excluded:
        weights.setdefault(BIAS, torch.zeros(tokenizer.size))[excluded] = EXCLUDED
    config = model.config.model_copy(
        update={
            "vocab_size": tokenizer.size,
            "source_vocab_size": None if source.size == tokenizer.size else source.size,
            "classifier_bias": BIAS in weights,
        }
    )
    ours = type(model)(config)
    ours.load_state_dict(weights)
    return ours.eval()


def _has_zero_padding(weights: dict[str, Tensor]) -> bool:
    """Return whether the padding row is zeros, as Hugging Face's port of Marian adds it. Marian has no such row, so it
    must not get any probability."""
    return BIAS in weights and not weights[BIAS][PAD] and not weights[CLASSIFIER][PAD].any()


def _reordered(weight: Tensor, tokenizer: Tokenizer, start: int | None) -> Tensor:
    native = list(tokenizer.own_ids)
    if max(native) >= len(weight):
        raise InputError(
            f"The vocabulary has {max(native) + 1} entries, the model {len(weight)}.", value=max(native) + 1
        )
    if native[START] < 0 and start is not None:
        native[START] = start
    found = weight[torch.tensor(native).clamp(min=0)].clone()
    found[[i for i, number in enumerate(native) if number < 0]] = 0
    return found


class NativeModel(NamedTuple):
    """A model in the order of its vocabulary's native ids. Special tokens without a native id are at the end."""

    model: EncoderDecoder
    pieces: list[str]
    source_pieces: list[str]
    pad: int
    start: int
    end: int
    unknown: int


@torch.no_grad()
def to_native_order(model: EncoderDecoder, tokenizer: Tokenizer) -> NativeModel:
    """Return the model in native order. If the vocabulary has no start token, answers begin with padding if both have
    the same embedding (Marian's zeros), else with an entry of their own."""
    weights = dict(model.state_dict())
    rows = weights[TARGET]
    lacking = [i for i in (PAD, START) if tokenizer.own_ids[i] < 0]
    same = START in lacking and torch.equal(rows[START], rows[PAD])
    target = _internal_ids(tokenizer, [i for i in lacking if not (same and i == START)])
    source = (
        target
        if tokenizer.joint
        else _internal_ids(tokenizer.source, [PAD] if tokenizer.source.own_ids[PAD] < 0 else [])
    )
    for name, order in ((SOURCE, source), (TARGET, target), (CLASSIFIER, target), (BIAS, target)):
        if name in weights:
            weights[name] = weights[name][torch.tensor(order)]
    config = model.config.model_copy(
        update={
            "vocab_size": len(target),
            "source_vocab_size": None if len(source) == len(target) else len(source),
        }
    )
    theirs = EncoderDecoder(config)
    theirs.load_state_dict(weights)
    numbers = [target.index(PAD if same and i == START else i) for i in (PAD, START, END, UNKNOWN)]
    return NativeModel(theirs.eval(), tokenizer.pieces(target), tokenizer.source.pieces(source), *numbers)


def _internal_ids(tokenizer: Tokenizer, more: list[int]) -> list[int]:
    """Return our id for each native id, then these ids without one."""
    ours = {own: i for i, own in enumerate(tokenizer.own_ids) if own >= 0}
    return [*(ours[own] for own in range(len(ours))), *more]

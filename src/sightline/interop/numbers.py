"""Numbers of tokens: a vocabulary from elsewhere has its own, and ours begin with the four special tokens.

The weights of a model have a row for every token, so they are put into another order when a model comes in, and back
when it goes out. What a model says stays the same: an entry that only we have is never said, nor is blank padding.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.model.transformer import EncoderDecoder, Model, build
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer

__all__ = ["Own", "adopted", "returned"]

NEVER_SAID = -1e4
"""The bias of a token that no answer may have. Its probability is 0, and half precision still holds it."""
SOURCE, TARGET = "encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight"
CLASSIFIER, BIAS = "classifier.weight", "classifier.bias"


@torch.no_grad()
def adopted(model: Model, tokenizer: Tokenizer, start: int | None = None) -> Model:
    """A model whose rows are in the order of its vocabulary's own numbers, in the order of ours. `start`: the number of
    the token that answers begin with, where the vocabulary has no start; None: they begin with zeros."""
    weights = dict(model.state_dict())
    source = tokenizer if model.config.tie == "all" or SOURCE not in weights else tokenizer.source
    for name, side in ((SOURCE, source), (TARGET, tokenizer), (CLASSIFIER, tokenizer), (BIAS, tokenizer)):
        if name in weights:
            weights[name] = _ordered(weights[name], side, start)
    own = tokenizer.own_ids
    silent = [i for i, number in enumerate(own) if number < 0 or (i != END and number == own[END])]
    silent += [PAD] if own[PAD] >= 0 and isinstance(model, EncoderDecoder) and _is_blank(weights) else []
    if silent:
        weights.setdefault(BIAS, torch.zeros(tokenizer.size))[silent] = NEVER_SAID
    config = model.config.model_copy(
        update={
            "vocab_size": tokenizer.size,
            "source_vocab_size": None if source.size == tokenizer.size else source.size,
            "classifier_bias": BIAS in weights,
        }
    )
    ours = build(config)
    ours.load_state_dict(weights)
    return ours.eval()


def _is_blank(weights: dict[str, Tensor]) -> bool:
    """Whether padding is an entry that a port of Marian has added: zeros, which nobody has learnt. Marian itself has no
    such entry, so it has no share in what is probable."""
    return BIAS in weights and not weights[BIAS][PAD] and not weights[CLASSIFIER][PAD].any()


def _ordered(weight: Tensor, tokenizer: Tokenizer, start: int | None) -> Tensor:
    own = list(tokenizer.own_ids)
    if max(own) >= len(weight):
        raise InputError(f"the vocabulary has {max(own) + 1} entries, and the model has {len(weight)} of them.")
    if own[START] < 0 and start is not None:
        own[START] = start
    found = weight[torch.tensor(own).clamp(min=0)].clone()
    found[[i for i, number in enumerate(own) if number < 0]] = 0
    return found


class Own(NamedTuple):
    """A model in the order of its vocabulary's own numbers. What the vocabulary lacks stands at the end."""

    model: EncoderDecoder
    pieces: list[str]
    source_pieces: list[str]
    pad: int
    start: int
    end: int
    unknown: int


@torch.no_grad()
def returned(model: EncoderDecoder, tokenizer: Tokenizer) -> Own:
    """A model of ours in its vocabulary's own order. Where that has no start, answers begin with the padding if it has
    the same embedding (Marian's zeros), else with an entry of their own."""
    weights = dict(model.state_dict())
    rows = weights[TARGET]
    lacking = [i for i in (PAD, START) if tokenizer.own_ids[i] < 0]
    same = START in lacking and torch.equal(rows[START], rows[PAD])
    target = _places(tokenizer, [i for i in lacking if not (same and i == START)])
    source = (
        target if tokenizer.joint else _places(tokenizer.source, [PAD] if tokenizer.source.own_ids[PAD] < 0 else [])
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
    return Own(theirs.eval(), tokenizer.pieces(target), tokenizer.source.pieces(source), *numbers)


def _places(tokenizer: Tokenizer, more: list[int]) -> list[int]:
    """For each own number our id, and then some that have none."""
    ours = {own: i for i, own in enumerate(tokenizer.own_ids) if own >= 0}
    return [*(ours[own] for own in range(len(ours))), *more]

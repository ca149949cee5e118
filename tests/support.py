"""Small models of every architecture, batches for them, and the check of errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sightline.config import ModelConfig, SearchConfig
from sightline.data.examples import prepare
from sightline.data.store import Store
from sightline.engine.translator import translation_request
from sightline.errors import SightlineError
from sightline.model.mask import PackedRows
from sightline.model.protocol import Inputs
from sightline.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, Model, build
from sightline.search.recorded import StaticCache
from sightline.search.types import NO_CONSTRAINTS, Constraints, Request
from sightline.special import END, START

VOCAB = 41
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "encoder": {"layers": 2, "heads": 4, "d_ff": 40},
    "decoder": {"layers": 3, "heads": 2, "d_ff": 56},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre", "activation": "gelu"},
    "biased": {"attention_bias": True, "classifier_bias": True, "activation": "swish", "tie": "target"},
    "halves": {"positions": {"kind": "halves", "frequencies": "tensor2tensor", "start": 1}, "tie": "none"},
    "learned": {"positions": {"kind": "learned", "max_length": 64}, "activation": "gelu-tanh", "embedding_norm": True},
    "rotary": {"positions": {"kind": "rotary"}, "activation": "swiglu", "norm": "pre"},
    "no positions": {"positions": {"kind": "none"}, "scale_embedding": False},
}
ONE_STACK: dict[str, dict[str, Any]] = {
    "gpt": {"architecture": "decoder-only", "norm": "pre", "activation": "gelu-tanh", "positions": {"kind": "learned"}},
    "llama": {"architecture": "decoder-only", "norm": "pre", "activation": "swiglu", "positions": {"kind": "rotary"}},
    "bert": {
        "architecture": "encoder-only",
        "activation": "gelu",
        "positions": {"kind": "learned"},
        "segments": 2,
        "embedding_norm": True,
        "scale_embedding": False,
        "classifier_bias": True,
    },
}
"""Options of models of one stack."""

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def random_weights(model: Model) -> Model:
    """Change all weights, biases and norms, so that a test fails if one of them is not used."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def config(variant: str = "paper", **more: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **VARIANTS[variant], **more})


def static_cache(model: DecoderOnly | EncoderDecoder, inputs: Inputs, *, beams: int = 1, capacity: int) -> StaticCache:
    """Return a static cache with the content of the cache that the model starts with."""
    cache = model.start(inputs, beams=beams, capacity=capacity)
    shape = (model.config, cache.sentences, beams, capacity, cache.cross[0].keys.shape[2] if cache.cross else 0)
    static = StaticCache(*shape, cache.keys.new_zeros(StaticCache.storage_size(*shape)))
    static.copy_from(cache)
    return static


def translator(variant: str = "paper", **more: Any) -> EncoderDecoder:
    model = random_weights(build(config(variant, **more)))
    assert isinstance(model, EncoderDecoder)
    return model


def model_of(variant: str, seed: int, ending: float = 0.0, **more: Any) -> EncoderDecoder:
    """Return a translator; `ending` is added to the score of the end."""
    torch.manual_seed(seed)
    model = translator(variant, **{"classifier_bias": True, **more})
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        model.classifier.bias[END] += ending
    return model


def writer(variant: str = "paper", **more: Any) -> DecoderOnly:
    model = random_weights(build(config(variant, architecture="decoder-only", **more)))
    assert isinstance(model, DecoderOnly)
    return model


def reader(variant: str = "paper", **more: Any) -> EncoderOnly:
    model = random_weights(build(config(variant, architecture="encoder-only", segments=2, **more)))
    assert isinstance(model, EncoderOnly)
    return model


def ids(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def pad(sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows padded on the right with arbitrary tokens, and their layout."""
    longest = max(len(s) for s in sentences)
    rows = ids(len(sentences), longest)
    layout = torch.zeros(len(sentences), longest, dtype=torch.bool)
    for i, sentence in enumerate(sentences):
        rows[i, : len(sentence)] = sentence
        layout[i, : len(sentence)] = True
    return rows, layout


def packed(sentences: list[Tensor]) -> tuple[Tensor, PackedRows]:
    """Return all sentences in one row, and its layout."""
    numbers = [torch.full((len(s),), i) for i, s in enumerate(sentences)]
    positions = [torch.arange(len(s)) for s in sentences]
    return torch.cat(sentences)[None], PackedRows(torch.cat(numbers)[None], torch.cat(positions)[None])


ANY = object()


@contextmanager
def raises(
    error_type: type[SightlineError], *, option: str | None = None, value: object = ANY, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[SightlineError]]:
    """Check that the block raises exactly `error_type` and blames this option, or no option.

    The message must contain the option in backticks. `value` is compared only if it is passed. `match` is a regular
    expression for errors that have no option: a path, or one word that identifies the error.
    """
    with pytest.raises(error_type, match=match) as caught:
        yield caught
    error = caught.value
    assert type(error) is error_type, f"{error!r} is a subclass of {error_type.__name__}"
    assert error.option == option, f"option is {error.option!r}, expected {option!r}: {error}"
    if value is not ANY:
        same = type(error.value) is type(value) and error.value == value
        assert same, f"value is {error.value!r}, expected {value!r}: {error}"
    if option is not None:
        assert f"`{option}`" in str(error), f"the message does not contain `{option}`: {error}"


def requests(
    sources: Sequence[Sequence[int]],
    model: ModelConfig,
    options: SearchConfig,
    constraints: Sequence[Constraints] | None = None,
) -> list[Request]:
    """Requests for the translations of these sources (ids without END)."""
    both = zip(sources, constraints or [NO_CONSTRAINTS] * len(sources), strict=True)
    return [translation_request(ids, options, model, wanted) for ids, wanted in both]


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape, (a.shape, b.shape)
    return (a - b).abs().max().item()


def hooks(model: torch.nn.Module) -> int:
    """Return the number of hooks on a model."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


@torch.no_grad()
def all_scores(model: EncoderDecoder, source: list[int], hypotheses: list[Any], penalty: float) -> list[float]:
    """Return the score of each hypothesis, by one pass over all of them."""
    rows = [torch.tensor([START, *h, END]) for h in hypotheses]
    target, lengths = pad_sequence(rows, batch_first=True), [len(row) - 1 for row in rows]
    sources = torch.tensor([[*source, END]]).expand(len(rows), -1)
    found = model(sources, target[:, :-1]).log_softmax(-1).gather(2, target[:, 1:, None])[:, :, 0]
    return [found[i, :n].sum().item() / n**penalty for i, n in enumerate(lengths)]


def store_of(*arguments: Any, **options: Any) -> Store:
    """Return the only store of these corpora, as `prepare` makes it."""
    (store,) = prepare(*arguments, **options)
    return store

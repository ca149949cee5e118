"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017, arXiv:1706.03762), whole, in the order a token
meets it: embedding, positions, attention, feed-forward, residual, layer, stack, model.

Section signs (§), equations and figures are the paper's. Two words that it does not have: a layout says which cells of
a batch are tokens, a mask who may look at whom (True = may look); both stand in mask.py. Nothing here reads, writes,
samples, computes a loss, or keeps anything between two calls: what generation keeps is the caller's cache (cache.py).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig, PositionsConfig, StackConfig
from sightline.errors import InputError
from sightline.model.cache import Cache, LayerCache, Memory
from sightline.model.initialise import initialise
from sightline.model.kernels import Dropout, activated, add_and_norm, attend, narrow
from sightline.model.mask import Layout, Mask, PackedRows, SourceLayout, longest_row

__all__ = ["Attend", "DecoderOnly", "EncoderDecoder", "EncoderOnly", "Model", "build"]

Ids = Int[Tensor, "batch length"]
Source = Int[Tensor, "batch source"]
Vectors = Float[Tensor, "batch length d_model"]
Encoded = Float[Tensor, "batch source d_model"]
Heads = Float[Tensor, "batch heads length d_k"]
Queries = Float[Tensor, "batch heads query d_k"]
Keys = Float[Tensor, "holders heads key d_k"]
Waves = Float[Tensor, "#batch 1 length d_k"] | None
Logits = Float[Tensor, "batch length vocab"]


# --- Embedding and positions (§3.4, §3.5)


def sinusoids(config: PositionsConfig, width: int) -> Float[Tensor, "max_length width"]:
    """sin(p·w_i) and cos(p·w_i) for each position p and rate w_i (§3.5). Computed in double precision: in single, the
    angle is wrong by 3e-5 at p = 500."""
    if config.frequencies == "paper":  # w_i = 10000^(-2i/d); an odd width has one sine more than cosines
        rates = config.max_timescale ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    else:  # tensor2tensor: a geometric series with both ends in it; an odd width ends in a zero
        step = math.log(config.max_timescale / config.min_timescale) / max(width // 2 - 1, 1)
        rates = config.min_timescale * torch.exp(-step * torch.arange(width // 2, dtype=torch.float64))
    places = torch.arange(config.start, config.start + config.max_length, dtype=torch.float64)
    angles = torch.outer(places, rates)
    waves = torch.stack([angles.sin(), angles.cos()], dim=2 if config.kind == "interleaved" else 1).flatten(1)
    return F.pad(waves, (0, width - waves.shape[1])).float()  # one channel less or more where the width is odd


class Positions(nn.Module):
    """A row for each position: sinusoids, or learned (§3.5). The rows are added to the tokens' vectors; the rows of
    rotary positions turn queries and keys instead, see `rotate`."""

    def __init__(self, config: PositionsConfig, width: int) -> None:
        super().__init__()
        if config.kind == "learned":
            self.table = nn.Parameter(torch.empty(config.max_length, width))
        else:
            with torch.device("cpu"):  # not every device knows double precision
                waves = sinusoids(config, width)
            waves = waves.to(torch.get_default_device(), torch.get_default_dtype())
            self.register_buffer("table", waves, persistent=False)

    def forward(self, positions: Ids) -> Vectors:
        return self.table[positions]


def rotate(x: Heads, waves: Waves) -> Heads:
    """Turn each pair of channels (i, i + d_k/2) by its position's angle, so that the product of a query and a key knows
    only the distance between them (Su et al., 2021, arXiv:2104.09864)."""
    if waves is None:
        return x
    (sine, cosine), (left, right) = waves.chunk(2, dim=-1), x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1).type_as(x)


class Embedding(nn.Module):
    """From ids to vectors: the token's row times √d_model (§3.4), plus its position (§3.5), under dropout (§5.4)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        added = config.positions.kind in ("interleaved", "halves", "learned")
        self.positions = Positions(config.positions, config.d_model) if added else None
        self.segments = nn.Embedding(config.segments, config.d_model) if config.segments else None
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def forward(self, ids: Ids, positions: Int[Tensor, "#batch length"], segments: Ids | None = None) -> Vectors:
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        return narrow(self.dropout(self.norm(x)))


# --- Attention (§3.2)


class Attend(nn.Module):
    """Scaled dot-product attention, softmax(q·kᵀ / √d_k)·v (§3.2.1, eq. 1; figure 2, left).

    The softmax is over the keys of one sentence; a query that may look nowhere gets zeros. This module has no
    parameters: it is the seam at which the model is looked into from outside, while a fused kernel does the work."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Queries, k: Keys, v: Keys, mask: Mask) -> Queries:
        return attend(q, k, v, mask, self.dropout if self.training else 0.0)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h)·W^O (§3.2.2; figure 2, right): what its two kinds share."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend = Attend(config.attention_dropout)
        self.output = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)  # W^O

    def split(self, x: Float[Tensor, "batch length stacked"], parts: int) -> tuple[Heads, ...]:
        """Take the stacked projections apart, and each into its heads."""
        d_k = x.shape[2] // parts // self.heads
        return x.view(*x.shape[:2], parts, self.heads, d_k).permute(2, 0, 3, 1, 4).unbind(0)

    def concat(self, z: Heads) -> Vectors:
        return self.output(z.transpose(1, 2).flatten(2))


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from the same sequence (§3.2.3). One matrix holds W^Q, W^K and W^V of all heads."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__(config, heads)
        self.query_key_value = nn.Linear(config.d_model, 3 * config.d_model, bias=config.attention_bias)

    def forward(self, x: Vectors, mask: Mask, waves: Waves = None, cache: LayerCache | None = None) -> Vectors:
        q, k, v = self.split(self.query_key_value(x), 3)
        q, k = rotate(q, waves), rotate(k, waves)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.concat(self.attend(q, k, v, mask))


class CrossAttention(MultiHeadAttention):
    """Encoder-decoder attention: queries from the decoder, keys and values from the encoder's output, by this layer's
    own W^K and W^V (§3.2.3)."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__(config, heads)
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=config.attention_bias)

    def remember(self, encoded: Vectors, mask: Mask) -> Memory:
        """This layer's keys and values of the source."""
        k, v = self.split(self.key_value(encoded), 2)
        return Memory(k, v, mask)

    def forward(self, x: Vectors, memory: Memory) -> Vectors:
        (q,), (k, v, mask) = self.split(self.query(x), 1), memory
        if len(q) == len(k) or mask.reading is not None:
            return self.concat(self.attend(q, k, v, mask))
        # The beams of a sentence put their queries one after another to the one copy of its keys and values.
        q = q.view(len(k), -1, *q.shape[1:]).transpose(1, 2)
        z = self.attend(q.flatten(2, 3), k, v, mask).view(q.shape)
        return self.concat(z.transpose(1, 2).flatten(0, 1))


# --- Feed-forward and residual (§3.3, §3.1)


def swiglu(x: Tensor) -> Tensor:
    """One half of a twice as wide inner layer gates the other (Shazeer, 2020, arXiv:2002.05202)."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]]
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu, "swiglu": swiglu}
ACTIVATIONS["gelu-tanh"] = partial(F.gelu, approximate="tanh")


class FeedForward(nn.Module):
    """max(0, x·W_1 + b_1)·W_2 + b_2, the same at every position (§3.3, eq. 2), or with a younger activation."""

    def __init__(self, config: ModelConfig, d_ff: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.inner = nn.Linear(config.d_model, 2 * d_ff if config.activation == "swiglu" else d_ff)
        self.outer = nn.Linear(d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Vectors) -> Vectors:
        return self.outer(self.dropout(activated(x, self.inner, self.activation)))


class Residual(nn.Module):
    """LayerNorm(x + Sublayer(x)) (§3.1), the sub-layer's output under dropout (§5.4). Pre-norm normalises what the
    sub-layer sees instead: x + Sublayer(LayerNorm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Vectors, sublayer: Callable[[Tensor], Tensor]) -> Vectors:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return add_and_norm(x, sublayer(x), self.dropout, self.norm)


# --- Layers and stacks (§3.1; figure 1)


class Layer(nn.Module):
    """Self-attention and feed-forward, each in its residual (figure 1, left); in a decoder that has an encoder beside
    it, encoder-decoder attention between the two (figure 1, right)."""

    def __init__(self, config: ModelConfig, stack: StackConfig, cross: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, stack.heads)
        self.self_attention_residual = Residual(config)
        if cross:
            self.cross_attention = CrossAttention(config, stack.heads)
            self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config, stack.d_ff)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Vectors, mask: Mask, waves: Waves, memory: Memory | None = None, cache: LayerCache | None = None
    ) -> Vectors:
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, mask, waves, cache))
        if memory is not None:
            x = self.cross_attention_residual(x, lambda x: self.cross_attention(x, memory))
        return self.feed_forward_residual(x, self.feed_forward)


class Stack(nn.Module):
    """N identical layers on an embedding; pre-norm needs a last normalisation above them."""

    def __init__(self, config: ModelConfig, stack: StackConfig, vocab_size: int, cross: bool = False) -> None:
        super().__init__()
        rotary, self.max_length = config.positions.kind == "rotary", config.positions.max_length
        self.embedding = Embedding(config, vocab_size)
        self.rotary = Positions(config.positions, config.d_model // stack.heads) if rotary else None
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(config, stack, cross) for _ in range(stack.layers))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon) if config.has_final_norm else nn.Identity()

    def positions(self, ids: Ids, layout: Layout) -> Int[Tensor, "#batch length"]:
        """0, 1, 2, ... along the row; from 0 again at each sentence of a packed row."""
        longest = longest_row(ids, layout, self.max_length)
        places = torch.arange(longest, device=ids.device)[None]
        return layout.position.view(ids.shape) if isinstance(layout, PackedRows) else places

    def waves(self, positions: Int[Tensor, "#batch length"]) -> Waves:
        return None if self.rotary is None else self.rotary(positions)[:, None]


class Encoder(Stack):
    """All positions at once, each looking at all (§3.1; figure 1, left)."""

    def forward(self, ids: Ids, layout: Layout = None, segments: Ids | None = None) -> Vectors:
        positions, mask = self.positions(ids, layout), Mask.of(layout, layout)
        x, waves = self.embedding(ids, positions, segments), self.waves(positions)
        for layer in self.layers:
            x = layer(x, mask, waves)
        return self.norm(x)


class Decoder(Stack):
    """No position looks ahead (§3.1; figure 1, right): all at once in training; in generation the next ones, after
    those that the cache holds."""

    def remember(self, encoded: Vectors, mask: Mask) -> list[Memory]:
        """What each layer's own W^K and W^V make of the encoder's output, which is the same for all of them."""
        return [layer.cross_attention.remember(encoded, mask) for layer in self.layers]

    def forward(
        self, ids: Ids, layout: Layout = None, memory: Sequence[Memory] = (), cache: Cache | None = None
    ) -> Vectors:
        positions = self.positions(ids, layout) if cache is None else cache.make_room(ids, layout)
        mask = Mask.of(layout, layout, causal=True) if cache is None else cache.mask(positions)
        x, waves = self.embedding(ids, positions), self.waves(positions)
        for i, layer in enumerate(self.layers):
            kept = None if cache is None else LayerCache(cache, i, positions)
            x = layer(x, mask, waves, memory[i] if memory else None, kept)
        if cache is not None:
            cache.advance(ids, layout)
        return self.norm(x)


# --- Models: the same blocks, three ways


class EncoderDecoder(nn.Module):
    """The paper's model (figure 1): reads a source, writes a target."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, config.encoder, config.source_vocab_size or config.vocab_size)
        self.decoder = Decoder(config, config.decoder, config.vocab_size, cross=True)
        self.classifier = classifier(config, self.decoder.embedding)
        if config.tie == "all":
            self.encoder.embedding.tokens.weight = self.classifier.weight
        initialise(self)

    def forward(self, source: Source, target: Ids, source_layout: SourceLayout = None, layout: Layout = None) -> Logits:
        """Teacher forcing: at each position of the target, a score for every token that could come next."""
        return self.classifier(self.decode(target, self.encoder(source, source_layout), source_layout, layout))

    def decode(
        self, target: Ids, encoded: Encoded, source_layout: SourceLayout = None, layout: Layout = None
    ) -> Vectors:
        if len(target) != len(encoded):
            raise InputError(f"{len(encoded)} rows of sources and {len(target)} of targets do not fit together.")
        memory = self.decoder.remember(encoded, Mask.of(source_layout, layout))
        return self.decoder(target, layout, memory, None)

    def new_cache(
        self, encoded: Vectors, layout: Layout = None, *, capacity: int, beams: int = 1, static: bool = False
    ) -> Cache:
        """An empty cache for so many hypotheses (beams) of each encoded source."""
        memory = self.decoder.remember(encoded, Mask.of(layout))
        return Cache(self.config, beams * len(encoded), capacity, like=encoded, static=static, memory=memory)

    def step(self, target: Ids, cache: Cache) -> Logits:
        """The scores after each of the next target tokens, which the cache then holds too."""
        return self.classifier(self.decoder(target, None, cache.memory, cache))


class DecoderOnly(nn.Module):
    """A language model (GPT): the decoder alone, continuing what it is given."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config, config.decoder, config.vocab_size)
        self.classifier = classifier(config, self.decoder.embedding)
        initialise(self)

    def forward(self, ids: Ids, layout: Layout = None, cache: Cache | None = None) -> Logits:
        return self.classifier(self.decoder(ids, layout, (), cache))

    def new_cache(self, rows: int, *, capacity: int, static: bool = False) -> Cache:
        return Cache(self.config, rows, capacity, like=self.classifier.weight, static=static)


class EncoderOnly(nn.Module):
    """A reader (BERT; Devlin et al., 2018, arXiv:1810.04805): the encoder alone. The vector of its first token, the
    class token, stands for the whole text; the masked-word head guesses the token at each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, config.encoder, config.vocab_size)
        self.head = nn.Linear(config.d_model, config.d_model)
        self.head_activation = ACTIVATIONS[config.activation.replace("swiglu", "swish")]
        self.head_norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.classifier = classifier(config, self.encoder.embedding)
        initialise(self)

    def forward(self, ids: Ids, layout: Layout = None, segments: Ids | None = None) -> Logits:
        x = self.encoder(ids, layout, segments)
        return self.classifier(self.head_norm(self.head_activation(self.head(x))))


def classifier(config: ModelConfig, embedding: Embedding) -> nn.Linear:
    """A score for every token of the vocabulary, by the matrix that embeds it (§3.4)."""
    linear = nn.Linear(config.d_model, config.vocab_size, bias=config.classifier_bias)
    if config.tie != "none":
        linear.weight = embedding.tokens.weight
    return linear


Model = EncoderDecoder | DecoderOnly | EncoderOnly
ARCHITECTURES: dict[str, type[Model]]
ARCHITECTURES = {"encoder-decoder": EncoderDecoder, "decoder-only": DecoderOnly, "encoder-only": EncoderOnly}


def build(config: ModelConfig) -> Model:
    """A new model, its weights drawn anew."""
    return ARCHITECTURES[config.architecture](config)

"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017, arXiv:1706.03762), in the order a token meets
it: embedding, positions, attention, feed-forward, residual, layer, stack, model.

Section signs (§), equations and figures are the paper's. A layout states which cells of a batch are tokens, a mask
which keys a query attends to (mask.py). The model keeps no state between calls: the caller owns the cache (cache.py).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig, PositionsConfig, StackConfig
from sightline.errors import InputError
from sightline.model.cache import Cache, CrossKV, LayerCache
from sightline.model.initialise import initialise, sinusoids
from sightline.model.kernels.attention import attend
from sightline.model.kernels.compiled import linear_activation, to_autocast
from sightline.model.kernels.dropout import Dropout
from sightline.model.kernels.residual_norm import residual_norm
from sightline.model.mask import Layout, Mask, PackedRows, SourceLayout, longest_row
from sightline.model.protocol import Decoding, Inputs

Ids = Int[Tensor, "batch length"]
Source = Int[Tensor, "batch source"]
Vectors = Float[Tensor, "batch length d_model"]
Heads = Float[Tensor, "batch heads length d_k"]
Queries = Float[Tensor, "batch heads query d_k"]
Keys = Float[Tensor, "key_rows heads key d_k"]
Rotary = Float[Tensor, "#batch 1 length d_k"] | None
Logits = Float[Tensor, "batch length vocab"]


# --- Embedding and positions (§3.4, §3.5)


class Positions(nn.Module):
    """A vector for each position: sinusoids, or learned (§3.5). It is added to the token's vector; rotary positions
    rotate queries and keys instead, see `rotate`."""

    def __init__(self, config: PositionsConfig, width: int) -> None:
        super().__init__()
        if config.kind == "learned":
            self.table = nn.Parameter(torch.empty(config.max_length, width))
        else:
            with torch.device("cpu"):  # not every device supports double precision
                table = sinusoids(config, width)
            table = table.to(torch.get_default_device(), torch.get_default_dtype())
            self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Ids) -> Vectors:
        return self.table[positions]


def rotate(x: Heads, rotary: Rotary) -> Heads:
    """Rotate each pair of channels (i, i + d_k/2) by the angle of its position, so that the product of a query and a
    key depends only on the distance between them (Su et al., 2021, arXiv:2104.09864)."""
    if rotary is None:
        return x
    (sine, cosine), (left, right) = rotary.chunk(2, dim=-1), x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1).type_as(x)


class Embedding(nn.Module):
    """Token vectors: the token's row times √d_model (§3.4), plus its position (§3.5), with dropout (§5.4)."""

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
        return to_autocast(self.dropout(self.norm(x)))


# --- Attention (§3.2)


def attention_weights(q: Queries, k: Keys, mask: Mask) -> Float[Tensor, "batch heads query key"]:
    """Compute softmax(q·kᵀ / √d_k) over the keys that the mask allows (§3.2.1, eq. 1), in float32. Fully masked rows
    return zeros. The model computes the same inside `Attend`, by a kernel; tests compare both."""
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    scores = (q.float() @ k.float().mT / math.sqrt(q.shape[3])).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1).masked_fill(~allowed.any(-1, keepdim=True), 0)


class Attend(nn.Module):
    """Scaled dot-product attention, softmax(q·kᵀ / √d_k)·v (§3.2.1, eq. 1; figure 2, left), by a fused kernel. Fully
    masked rows return zeros. This module has no parameters: hooks on it read and change attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Queries, k: Keys, v: Keys, mask: Mask) -> Queries:
        return attend(q, k, v, mask, self.dropout if self.training else 0.0)


def split(x: Float[Tensor, "batch length stacked"], parts: int, heads: int) -> tuple[Heads, ...]:
    """Split stacked projections, and each of them into heads."""
    d_k = x.shape[2] // parts // heads
    return x.view(*x.shape[:2], parts, heads, d_k).permute(2, 0, 3, 1, 4).unbind(0)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h)·W^O (§3.2.2; figure 2, right): base of its two kinds."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend = Attend(config.attention_dropout)
        self.output = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)  # W^O

    def concat(self, z: Heads) -> Vectors:
        return self.output(z.transpose(1, 2).flatten(2))


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from the same sequence (§3.2.3). One matrix holds W^Q, W^K and W^V of all heads."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__(config, heads)
        self.query_key_value = nn.Linear(config.d_model, 3 * config.d_model, bias=config.attention_bias)

    def forward(self, x: Vectors, mask: Mask, rotary: Rotary = None, cache: LayerCache | None = None) -> Vectors:
        q, k, v = split(self.query_key_value(x), 3, self.heads)
        q, k = rotate(q, rotary), rotate(k, rotary)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.concat(self.attend(q, k, v, mask))


class CrossAttention(MultiHeadAttention):
    """Encoder-decoder attention: queries from the decoder, keys and values from the encoder's output (§3.2.3)."""

    def __init__(self, config: ModelConfig, heads: int) -> None:
        super().__init__(config, heads)
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=config.attention_bias)

    def project_source(self, memory: Vectors, mask: Mask) -> CrossKV:
        """Return this layer's keys and values of the encoder's output."""
        k, v = split(self.key_value(memory), 2, self.heads)
        return CrossKV(k, v, mask)

    def forward(self, x: Vectors, cross: CrossKV) -> Vectors:
        (q,), (k, v, mask) = split(self.query(x), 1, self.heads), cross
        if len(q) == len(k) or mask.window is not None:
            return self.concat(self.attend(q, k, v, mask))
        # The beams of a sentence share its keys and values: their queries become further positions of one row.
        q = q.view(len(k), -1, *q.shape[1:]).transpose(1, 2)
        z = self.attend(q.flatten(2, 3), k, v, mask).view(q.shape)
        return self.concat(z.transpose(1, 2).flatten(0, 1))


# --- Feed-forward and residual (§3.3, §3.1)


class SwiGLU(nn.Module):
    """Gate one half of the inner layer, which is twice as wide, by the other (Shazeer, 2020, arXiv:2002.05202)."""

    def forward(self, x: Float[Tensor, "batch length d_inner"]) -> Float[Tensor, "batch length d_ff"]:
        gate, value = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "swish": nn.SiLU, "swiglu": SwiGLU}
ACTIVATIONS["gelu-tanh"] = lambda: nn.GELU("tanh")


class FeedForward(nn.Module):
    """max(0, x·W_1 + b_1)·W_2 + b_2, the same at every position (§3.3, eq. 2), or with a later activation."""

    def __init__(self, config: ModelConfig, d_ff: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]()
        self.inner = nn.Linear(config.d_model, 2 * d_ff if config.activation == "swiglu" else d_ff)
        self.outer = nn.Linear(d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Vectors) -> Vectors:
        return self.outer(self.dropout(linear_activation(x, self.inner, self.activation)))


class Residual(nn.Module):
    """LayerNorm(x + Sublayer(x)) (§3.1), with dropout on the sub-layer's output (§5.4). Pre-norm normalises its input
    instead: x + Sublayer(LayerNorm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Vectors, sublayer: Callable[[Tensor], Tensor]) -> Vectors:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return residual_norm(x, sublayer(x), self.dropout, self.norm)


# --- Layers and stacks (§3.1; figure 1)


class Layer(nn.Module):
    """Self-attention and feed-forward, each with its residual (figure 1, left); in the decoder of an encoder-decoder
    model, encoder-decoder attention between the two (figure 1, right)."""

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
        self, x: Vectors, mask: Mask, rotary: Rotary, cross: CrossKV | None = None, cache: LayerCache | None = None
    ) -> Vectors:
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, mask, rotary, cache))
        if cross is not None:
            x = self.cross_attention_residual(x, lambda x: self.cross_attention(x, cross))
        return self.feed_forward_residual(x, self.feed_forward)


class Stack(nn.Module):
    """An embedding and N identical layers; pre-norm needs a final normalisation."""

    def __init__(self, config: ModelConfig, stack: StackConfig, vocab_size: int, cross: bool = False) -> None:
        super().__init__()
        rotary, self.max_length = config.positions.kind == "rotary", config.positions.max_length
        self.embedding = Embedding(config, vocab_size)
        self.rotary = Positions(config.positions, config.d_model // stack.heads) if rotary else None
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(config, stack, cross) for _ in range(stack.layers))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon) if config.has_final_norm else nn.Identity()

    def positions(self, ids: Ids, layout: Layout) -> Int[Tensor, "#batch length"]:
        """Return 0, 1, 2, ... along each row; in packed rows, from 0 for each sentence."""
        columns = torch.arange(longest_row(ids, layout, self.max_length), device=ids.device)[None]
        return layout.position if isinstance(layout, PackedRows) else columns

    def rotary_table(self, positions: Int[Tensor, "#batch length"]) -> Rotary:
        return None if self.rotary is None else self.rotary(positions)[:, None]


class Encoder(Stack):
    """The encoder: each position attends to all positions (§3.1; figure 1, left)."""

    def forward(self, ids: Ids, layout: Layout = None, segments: Ids | None = None) -> Vectors:
        positions, mask = self.positions(ids, layout), Mask.of(layout, layout)
        x, rotary = self.embedding(ids, positions, segments), self.rotary_table(positions)
        for layer in self.layers:
            x = layer(x, mask, rotary)
        return self.norm(x)


class Decoder(Stack):
    """The decoder: no position attends to later ones (§3.1; figure 1, right). With a cache, the ids continue it."""

    def project_source(self, memory: Vectors, mask: Mask) -> list[CrossKV]:
        """Return each layer's keys and values of the encoder's output."""
        return [layer.cross_attention.project_source(memory, mask) for layer in self.layers]

    def forward(
        self, ids: Ids, layout: Layout = None, cross: Sequence[CrossKV] = (), cache: Cache | None = None
    ) -> Vectors:
        positions = self.positions(ids, layout) if cache is None else cache.next_positions(ids, layout)
        mask = Mask.of(layout, layout, causal=True) if cache is None else cache.mask(positions)
        x, rotary = self.embedding(ids, positions), self.rotary_table(positions)
        for i, layer in enumerate(self.layers):
            layer_cache = None if cache is None else LayerCache(cache, i, positions)
            x = layer(x, mask, rotary, cross[i] if cross else None, layer_cache)
        if cache is not None:
            cache.advance(ids, layout)
        return self.norm(x)


# --- Models: the same blocks in three arrangements


class Model(nn.Module):
    """Base of the three models."""

    classifier: nn.Linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        return self.classifier.weight.device

    def compile_units(self) -> Iterable[nn.Module]:
        """Yield the modules to compile, shard or checkpoint one by one, inner ones first."""
        outside = [module.key_value for module in self.modules() if isinstance(module, CrossAttention)]
        return [*outside, *(module for module in self.modules() if isinstance(module, Layer))]

    def hidden(self, inputs: Inputs) -> Vectors:
        raise NotImplementedError


class EncoderDecoder(Decoding, Model):
    """The paper's model (figure 1): reads a source, writes a target."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, config.encoder, config.source_vocab_size or config.vocab_size)
        self.decoder = Decoder(config, config.decoder, config.vocab_size, cross=True)
        self.classifier = classifier(config, self.decoder.embedding)
        if config.tie == "all":
            self.encoder.embedding.tokens.weight = self.classifier.weight
        initialise(self)

    def forward(self, source: Source, target: Ids, source_layout: SourceLayout = None, layout: Layout = None) -> Logits:
        """Teacher forcing: at each position of the target, return a score for every token that could come next."""
        return self.classifier(self.hidden(Inputs(source, target, source_layout, layout)))

    def hidden(self, inputs: Inputs) -> Vectors:
        return self.decoder(inputs.require("target"), inputs.target_layout, self.project_source(inputs))

    def project_source(self, inputs: Inputs) -> list[CrossKV]:
        source, target = inputs.require("source"), inputs.target
        if target is not None and len(source) != len(target):
            raise InputError(f"The source has {len(source)} rows, but the target has {len(target)}.")
        memory = self.encoder(source, inputs.source_layout, inputs.segments)
        return self.decoder.project_source(memory, Mask.of(inputs.source_layout, inputs.target_layout))


class DecoderOnly(Decoding, Model):
    """A language model (GPT): the decoder alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.decoder = Decoder(config, config.decoder, config.vocab_size)
        self.classifier = classifier(config, self.decoder.embedding)
        initialise(self)

    def forward(self, ids: Ids, layout: Layout = None) -> Logits:
        """Return, at each position, a score for every token that could come next."""
        return self.classifier(self.hidden(Inputs(target=ids, target_layout=layout)))

    def hidden(self, inputs: Inputs) -> Vectors:
        return self.decoder(inputs.require("target"), inputs.target_layout)


class EncoderOnly(Model):
    """A reader (BERT; Devlin et al., 2018, arXiv:1810.04805): the encoder alone. The vector of the first token, the
    class token, represents the whole text; the masked-word head predicts the token at each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, config.encoder, config.vocab_size)
        self.head = nn.Linear(config.d_model, config.d_model)
        self.head_activation = ACTIVATIONS[config.activation.replace("swiglu", "swish")]()
        self.head_norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.classifier = classifier(config, self.encoder.embedding)
        initialise(self)

    def forward(self, ids: Ids, layout: Layout = None, segments: Ids | None = None) -> Logits:
        return self.classifier(self.hidden(Inputs(ids, source_layout=layout, segments=segments)))

    def hidden(self, inputs: Inputs) -> Vectors:
        """Compute everything below the classifier, the masked-word head included."""
        x = self.encoder(inputs.require("source"), inputs.source_layout, inputs.segments)
        return self.head_norm(self.head_activation(self.head(x)))


def classifier(config: ModelConfig, embedding: Embedding) -> nn.Linear:
    """Return the scores for every token of the vocabulary, by the matrix of the embedding (§3.4)."""
    linear = nn.Linear(config.d_model, config.vocab_size, bias=config.classifier_bias)
    if config.tie != "none":
        linear.weight = embedding.tokens.weight
    return linear


ARCHITECTURES: dict[str, type[Model]]
ARCHITECTURES = {"encoder-decoder": EncoderDecoder, "decoder-only": DecoderOnly, "encoder-only": EncoderOnly}


def build(config: ModelConfig) -> Model:
    """Return a new model with random weights."""
    return ARCHITECTURES[config.architecture](config)

"""Every option of Sightline: its default, its bounds and its help text. Names follow the paper."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sightline.choices import BackendName, PrecisionName, RerankName
from sightline.options import ConflictError, Options, load_options

__all__ = [
    "CompletionOptions",
    "Config",
    "DataConfig",
    "LoadOptions",
    "ModelConfig",
    "SearchConfig",
    "ServeConfig",
    "ShortlistOptions",
    "TextConstraints",
    "TrainConfig",
    "load",
]

Size = Annotated[int, Field(gt=0, lt=10**9, strict=True)]
Rate = Annotated[float, Field(ge=0, lt=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class PositionsConfig(Options):
    """Positional encodings (§3.5)."""

    kind: Literal["interleaved", "halves", "learned", "rotary", "none"] = "interleaved"
    """interleaved: sine in even channels, cosine in odd channels, as in the paper; halves: all sines, then all cosines
    (tensor2tensor, fairseq, Marian); learned: a trained table; rotary: queries and keys are rotated by their position;
    none: no positional encoding."""
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    """paper: max_timescale^(-2i/d_model), as in Hugging Face's Marian models; tensor2tensor: a geometric series from
    min_timescale to max_timescale, both included, as in Marian itself."""
    min_timescale: Annotated[float, Field(gt=0, strict=True)] = 1.0
    """Shortest timescale of tensor2tensor's series. The paper's formula does not use it."""
    max_timescale: Annotated[float, Field(gt=1, strict=True)] = 10_000.0
    """Longest timescale; 10000 in the paper."""
    start: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """Position of the first token (fairseq starts at 2). Sinusoids only."""
    max_length: Annotated[int, Field(gt=0, le=1_000_000, strict=True)] = 4096
    """Maximum number of tokens. Sinusoids are computed up to it; a learned table has this many rows."""


class StackConfig(Options):
    """One stack of layers: the encoder or the decoder."""

    layers: Size = 6
    """Number of layers (N in figure 1)."""
    heads: Size = 8
    """Attention heads per layer, each of d_model / heads channels (§3.2.2)."""
    d_ff: Size = 2048
    """Inner width of the feed-forward network (§3.3)."""


class ModelConfig(Options):
    """Options of a model. The defaults are the paper's base model."""

    architecture: Literal["encoder-decoder", "decoder-only", "encoder-only"] = "encoder-decoder"
    """encoder-decoder: translation (the paper); decoder-only: text generation (GPT); encoder-only: text understanding
    (BERT)."""
    vocab_size: Size = 37_000
    """Vocabulary size; size of the target vocabulary if sources have their own."""
    source_vocab_size: Size | None = None
    """Size of the source vocabulary, if it is not the target's."""
    tie: Literal["all", "target", "none"] = "all"
    """Which matrices are shared (§3.4). all: source embedding, target embedding and classifier; target: the last
    two."""
    d_model: Size = 512
    """Width of the vectors between layers."""
    encoder: StackConfig = StackConfig()
    """Layers of the encoder."""
    decoder: StackConfig = StackConfig()
    """Layers of the decoder."""
    positions: PositionsConfig = PositionsConfig()
    """Positional encodings."""
    activation: Literal["relu", "gelu", "gelu-tanh", "swish", "swiglu"] = "relu"
    """Activation of the feed-forward network; relu in the paper."""
    norm: Literal["post", "pre"] = "post"
    """post: normalise after each residual sum, as in the paper; pre: before each sub-layer, more stable in deep
    stacks."""
    norm_epsilon: Annotated[float, Field(gt=0, strict=True)] = 1e-5
    """Added to the variance in layer normalisation."""
    final_norm: Flag | None = None
    """Normalise the output of each stack. Default: only with `norm` = pre."""
    scale_embedding: Flag = True
    """Multiply embeddings by the square root of d_model (§3.4)."""
    embedding_norm: Flag = False
    """Normalise the embedded tokens before the first layer (BERT)."""
    segments: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """Number of segment embeddings of an encoder-only model (BERT has 2); 0: none."""
    attention_bias: Flag = False
    """Add a bias to the four projections of attention; none in the paper, used by Marian, BERT and GPT-2."""
    classifier_bias: Flag = False
    """Add a bias to the logits (Marian, BERT)."""
    source_end: Flag = True
    """Append the end token to sources, as Marian does; OpenNMT does not. Training needs true."""
    dropout: Rate = 0.1
    """Dropout on embeddings and on every sub-layer's output (§5.4)."""
    attention_dropout: Rate = 0.0
    """Dropout on attention probabilities; not in the paper."""
    activation_dropout: Rate = 0.0
    """Dropout inside the feed-forward network; not in the paper."""

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The stacks of this architecture, by name."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if name in self.architecture.split("-")}

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for name, stack in self.stacks.items():
            channels, rest = divmod(self.d_model, stack.heads)
            if rest:
                problem = f"must be a multiple of `{name}.heads` = {stack.heads}, got {self.d_model}."
                raise ConflictError("d_model", self.d_model, problem)
            if self.positions.kind == "rotary" and channels % 2:
                problem = (
                    f"= 'rotary' needs an even number of channels per head; `d_model` / `{name}.heads` is {channels}."
                )
                raise ConflictError("positions.kind", "rotary", problem)
        if self.segments and self.architecture != "encoder-only":
            raise ConflictError("segments", self.segments, f"must be 0 for {self.architecture} models.")
        if (size := self.source_vocab_size) not in (None, self.vocab_size):
            if self.architecture != "encoder-decoder":
                raise ConflictError("source_vocab_size", size, f"cannot be set for {self.architecture} models.")
            if self.tie == "all":
                problem = (
                    f"= 'all' needs one vocabulary, but `source_vocab_size` is {size} and `vocab_size` is "
                    f"{self.vocab_size}. Set `tie` to 'target' or 'none'."
                )
                raise ConflictError("tie", "all", problem)
        least, most = self.positions.min_timescale, self.positions.max_timescale
        if least >= most:
            problem = f"must be below `positions.max_timescale` = {most:g}, got {least:g}."
            raise ConflictError("positions.min_timescale", least, problem)
        return self


class DataConfig(Options):
    """Options of training text: vocabulary and filtering."""

    tokenizer: str | None = None
    """Vocabulary file: a sentencepiece model, a tokenizer.json, BERT's vocab.txt, or GPT-2's vocab.json next to its
    merges.txt. Default: learn a joint sentencepiece vocabulary from the training text."""
    vocab_size: Size | None = None
    """Size of the learned vocabulary. Default: chosen by the size of the corpus."""
    max_length: Annotated[int, Field(ge=8, lt=10**6, strict=True)] = 250
    """Maximum number of tokens. Longer pairs are left out; texts and dialogues are split."""
    max_ratio: Annotated[float, Field(gt=1, strict=True)] = 4.0
    """Maximum ratio between the token counts of both sides; other pairs are left out."""
    bpe_dropout: Rate = 0.0
    """Probability of skipping a merge, so that words are split in different ways (BPE-dropout, Provilkov et al., 2020,
    arXiv:1910.13267). Helps small corpora. Each process draws other splits, even with the same seed, so a run is
    repeatable only while its tokenised text stays in the cache."""
    readings: Size = 8
    """With `bpe_dropout`: number of prepared versions of the corpus; epochs alternate between them."""


class TrainConfig(Options):
    """Options of training. The defaults are the paper's (§5)."""

    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 1
    """Seed of the initial weights, the order of the data and dropout. The same seed gives the same run."""
    epochs: Annotated[float, Field(gt=0, le=10**6)] = 20
    """Passes over the corpus."""
    steps: Size | None = None
    """Number of updates; replaces epochs."""
    batch_tokens: Size | Literal["auto"] = 4096
    """Tokens per batch and device, on each side. auto: as many as fit in the device's memory."""
    accumulate: Size = 1
    """Batches per update; their gradients are summed."""
    rows: Literal["auto", "padded", "shared"] = "auto"
    """padded: sentences of similar length, one per row; shared: sentences packed into rows of a fixed length, so that
    all batches have the same shape. auto: shared on a GPU, else padded."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """adam: the paper's; adamw: with decoupled weight decay; muon: orthogonal updates for matrices, adamw for other
    parameters."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """Peak learning rate; a factor (1 in the paper) with `schedule` = noam."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant"] = "noam"
    """Learning rate schedule after the warm-up; noam is the paper's equation 3."""
    warmup: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 4000
    """Number of warm-up updates."""
    betas: tuple[Rate, Rate] = (0.9, 0.98)
    """β₁ and β₂ of Adam."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-9
    """ε of Adam."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of matrices, except embeddings."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """Maximum norm of the gradient; 0: no clipping."""
    smoothing: Rate = 0.1
    """Label smoothing (§5.4)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the R-Drop loss, the divergence of two passes with different dropout (Liang et al., 2021,
    arXiv:2106.14448). Helps small corpora; doubles the cost of a step."""
    ema: Rate = 0.0
    """Decay per step of an exponential moving average of the weights (0.999, for example), which is then validated and
    saved. 0: none."""
    average: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    """Average the weights of this many validated states at the end, if the average validates better."""
    average_of: Literal["last", "best"] = "last"
    """The states to average."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products. auto: bfloat16 if the GPU supports it."""
    compile: Flag | Literal["auto"] = "auto"
    """Compile the layers. auto: on a GPU, if the run is long enough to save more time than compiling takes."""
    graphs: Flag | Literal["auto"] = "auto"
    """Record each training step as a CUDA graph and replay it. auto: on one GPU."""
    shard: Flag = False
    """With several processes: shard weights, gradients and optimizer (FSDP2) instead of replicating them (DDP)."""
    report_every: Size = 50
    """Updates between progress reports."""
    validate_every: Size | None = None
    """Updates between validations. Default: each epoch, but at most ten times in a run."""
    save_every: Size | None = None
    """Updates between checkpoints. Default: at each validation."""
    keep_tested: Flag = False
    """Save the initial and every validated state as a model in tested/step-<number>, to inspect how the model
    learned."""
    patience: Annotated[int, Field(ge=0, strict=True)] = 0
    """Stop after this many validations without improvement; 0: never."""
    best_by: Literal["loss", "bleu", "chrf"] = "bleu"
    """Metric that selects the best state. Models that do not translate use the loss."""
    beams: Size = 1
    """Beam size in validation."""


class SearchConfig(Options):
    """Options of a search. The defaults are the paper's (§6.1): four beams."""

    beams: Annotated[int, Field(ge=1, le=1000, strict=True)] = 4
    """Beam size; 1 is greedy search. When sampling: number of samples."""
    nbest: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Number of answers to each text, best first."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """α of the score log P(y|x) / |y|^α, where |y| counts the end token. 0 prefers short answers, 1 scores by the mean
    over tokens, more prefers long answers."""
    coverage_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    """β of Wu et al. (2016, arXiv:1609.08144), equation 14: β · Σ log min(1, attention to a source token) is added to
    the score, so that less of the source is left untranslated. The attention is the mean over the heads of the last
    decoder layer."""
    stop: Literal["full", "best"] = "full"
    """When the search of a sentence ends. full: `beams` × `patience` hypotheses are finished. best: no unfinished
    hypothesis can reach a better score than the answers; slower."""
    patience: Annotated[float, Field(ge=1, le=100)] = 2.0
    """With `stop` = full: finished hypotheses per beam (Kasai et al., 2022, arXiv:2204.05424). With 1, a search often
    ends before its best answer is finished. Greedy search ends with its first answer."""
    min_ratio: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Least number of new tokens, relative to the source."""
    max_ratio: Annotated[float, Field(gt=0, le=100)] = 2.0
    """Most new tokens, relative to the source, before `max_extra` is added."""
    max_extra: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 10
    """Added to the most new tokens that `max_ratio` allows."""
    groups: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Groups of diverse beam search (Vijayakumar et al., 2018, arXiv:1610.02424); each is penalised for tokens of the
    groups before it."""
    diversity: Annotated[float, Field(ge=0, le=100)] = 0.5
    """With `groups`: penalty of a token for each earlier group that chose it in the same step."""
    sample: Flag = False
    """Sample tokens from the model's distribution instead of searching."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Sampling temperature; lower is more conservative."""
    top_k: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """Sample from the k most likely tokens; 0 disables the limit."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens whose probabilities add up to this."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Sample from tokens with at least this probability relative to the most likely token."""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 1
    """Sampling seed. The same seed gives the same samples for a sentence, in any batch."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Divides positive scores, and multiplies negative ones, of the tokens of the answer so far and of the text that it
    continues (Keskar et al., 2019, arXiv:1909.05858). 1: none."""
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    """Subtracted from the score of each token that the answer contains already."""
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    """Subtracted from the score of a token for each time that the answer contains it already."""
    rerank: RerankName = "none"
    """Order of samples. none: best score first. mbr-chrf: most similar to the other samples first (minimum Bayes risk
    by chrF; Eikema and Aziz, 2020, arXiv:2005.10283). Needs some dozens of samples."""

    @property
    def penalises(self) -> bool:
        """Whether the scores of a token depend on whether the text contains it already."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def max_finished(self, beams: int) -> int:
        """Return the number of finished hypotheses that ends the search of a sentence, with stop = full."""
        return int(beams * self.patience + 0.5) if beams > 1 else 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.nbest > self.beams:
            raise ConflictError("nbest", self.nbest, f"must be at most `beams` = {self.beams}, got {self.nbest}.")
        if self.beams % self.groups:
            raise ConflictError("groups", self.groups, f"must divide `beams` = {self.beams}, got {self.groups}.")
        if self.sample and self.groups > 1:
            raise ConflictError("groups", self.groups, f"must be 1 with `sample` = true, got {self.groups}.")
        if self.rerank != "none" and not self.sample:
            raise ConflictError("rerank", self.rerank, f"= {self.rerank!r} needs samples. Set `sample` = true.")
        return self


class TextConstraints(Options):
    """Texts that answers must or must not contain."""

    prefix: str = ""
    """Required beginning of the answer."""
    forbid: tuple[str, ...] = ()
    """Words that the answer must not contain."""
    require: tuple[str, ...] = ()
    """Words that the answer must contain."""


class CompletionOptions(Options):
    """Options of a continuation, in addition to those of a search."""

    n: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Number of continuations."""
    max_tokens: Annotated[int, Field(ge=1, lt=10**9, strict=True)] = 64
    """Maximum tokens of a continuation."""
    stop: tuple[str, ...] = ()
    """Text before which a continuation ends."""
    top: Annotated[int, Field(ge=0, le=20, strict=True)] = 0
    """Report this many of the likeliest tokens at each position. Not with several beams."""


class LoadOptions(Options):
    """Options of loading a model: where and how it computes."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1 or mps. auto: the GPU if there is one, else the CPU."""
    backend: BackendName = "auto"
    """Library that computes translations. auto: CTranslate2 on a CPU, if it is installed and gives the same answers;
    else torch."""
    precision: PrecisionName = "auto"
    """Precision of the computation. auto: float32, in which all backends give the same answers. bfloat16 (on a GPU) and
    int8 (with CTranslate2) are faster, but change some answers."""
    shortlist: Flag = False
    """Choose only from the tokens in the model's shortlist, which `sightline shortlist` writes. Faster, but some words
    are never found. Answers with a required beginning or forbidden words may have any token."""
    threads: Size | None = None
    """Threads of CTranslate2. Default: as many as torch has."""
    batch_tokens: Size | None = None
    """Tokens of a batch; those of a source count once per beam. Default: by the free memory of the GPU."""


class ShortlistOptions(Options):
    """Options of learning a shortlist."""

    often: Size | None = None
    """Number of frequent tokens that are always allowed. Default: two fifths of the vocabulary."""
    likely: Size = 200
    """Number of target tokens that each source token allows, most probable first."""


class ServeConfig(Options):
    """Limits of the service."""

    max_body: Annotated[int, Field(gt=0, strict=True)] = 1_000_000
    """Maximum bytes of a request."""
    max_texts: Annotated[int, Field(gt=0, strict=True)] = 256
    """Maximum texts of a request."""
    max_characters: Annotated[int, Field(gt=0, strict=True)] = 50_000
    """Maximum characters of a request."""
    max_tokens: Annotated[int, Field(gt=0, strict=True)] = 65_536
    """Maximum tokens of a request, counted once per beam."""
    max_beams: Annotated[int, Field(gt=0, le=1000, strict=True)] = 16
    """Maximum beams or samples."""
    max_nbest: Annotated[int, Field(gt=0, le=1000, strict=True)] = 16
    """Maximum answers per text."""
    max_groups: Annotated[int, Field(gt=0, le=1000, strict=True)] = 16
    """Maximum groups of diverse beam search."""
    max_patience: Annotated[float, Field(ge=1, le=100)] = 4.0
    """Maximum patience of a beam search."""
    max_ratio: Annotated[float, Field(gt=0, le=100)] = 4.0
    """Maximum of the option max_ratio of a search."""
    max_extra: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 100
    """Maximum of the option max_extra of a search."""
    max_top_k: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 1000
    """Maximum top_k of sampling; 0, which disables top_k, is always allowed."""
    max_traced: Annotated[int, Field(gt=0, strict=True)] = 512
    """Maximum tokens of a traced text or translation."""
    max_edits: Annotated[int, Field(gt=0, strict=True)] = 256
    """Maximum parts, heads and cells that `what_if` of a request changes."""
    max_requests: Annotated[int, Field(gt=0, strict=True)] = 512
    """Maximum requests at the same time."""
    max_queue: Annotated[int, Field(gt=0, strict=True)] = 1024
    """Maximum requests that wait for a model."""
    deadline: Annotated[float, Field(gt=0)] = 60.0
    """Deadline of an answer in seconds."""
    receive: Annotated[float, Field(gt=0)] = 20.0
    """Deadline for receiving a request in seconds."""
    shutdown: Annotated[float, Field(gt=0)] = 30.0
    """Grace period for running requests at shutdown, in seconds."""
    wait: Annotated[float, Field(ge=0, le=1)] = 0.005
    """Maximum seconds that a request waits for others to share its batch; a single request does not wait."""
    batch_tokens: Annotated[int, Field(gt=0, strict=True)] = 8192
    """Source tokens of a batch, counted once per beam."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Maximum requests per minute and key; 0: no limit."""
    memory: Annotated[float, Field(ge=0)] = 0.0
    """Memory budget for loaded models in GiB; least recently used models are unloaded first. 0: no limit."""
    trace_memory: Annotated[float, Field(gt=0)] = 0.5
    """Memory budget for traces in GiB; the oldest are deleted first."""
    origins: tuple[str, ...] = ()
    """Web page that may send requests (CORS), such as https://example.org."""


class Config(Options):
    """All options of a training run."""

    model: ModelConfig = ModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """The training text."""
    train: TrainConfig = TrainConfig()
    """The training."""


def load(preset: str | None = None, file: Path | str | None = None, sets: Iterable[str] = ()) -> Config:
    """Return the configuration of a preset, overridden by a TOML file, overridden by each `a.b=c` of `sets`."""
    return load_options(Config, preset=preset, file=file, sets=sets)

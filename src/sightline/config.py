"""Every option of Sightline: its default, its bounds and its help text, each in this one place.

The words are the paper's. A configuration is put together as `preset < file.toml < --set a.b=c`; the
later wins. Unknown keys are errors, and all errors are reported together.
"""

import difflib
import json
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sightline.errors import ConfigError

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "PositionsConfig",
    "SearchConfig",
    "ServeConfig",
    "StackConfig",
    "TrainConfig",
    "explained",
    "load",
    "load_search",
    "load_serve",
    "options",
    "presets",
]

Size = Annotated[int, Field(gt=0, lt=10**9, strict=True)]
Rate = Annotated[float, Field(ge=0, lt=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name


class _OneSentence(ModelMetaclass):
    """Turns pydantic's report into our own error, also for a config that is built in Python."""

    def __call__(self, /, **values: Any) -> Any:
        try:
            return super().__call__(**values)
        except ValidationError as error:
            raise _config_error(error, cast("type[BaseModel]", self)) from None


class Options(BaseModel, metaclass=_OneSentence):
    """A group of options: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )


class PositionsConfig(Options):
    """How a token learns where it stands (§3.5)."""

    kind: Literal["interleaved", "halves", "learned", "rotary", "none"] = "interleaved"
    """interleaved: sine in even channels, cosine in odd ones, as the paper writes it; halves: all sines, then all
    cosines (tensor2tensor, fairseq, Marian); learned: a trained table; rotary: queries and keys are turned by their
    position; none: the model sees a bag of words."""
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    """paper: max_timescale^(-2i/d_model), as Hugging Face's port of Marian has it; tensor2tensor: a geometric series
    from min_timescale to max_timescale, both ends included, as Marian itself has it."""
    min_timescale: Annotated[float, Field(gt=0, strict=True)] = 1.0
    """Where tensor2tensor's series of timescales begins; the paper's rule does not use it."""
    max_timescale: Annotated[float, Field(gt=1, strict=True)] = 10_000.0
    """The slowest timescale: the paper's 10000."""
    start: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """The position of the first token (fairseq starts at 2). Sinusoids only."""
    max_length: Annotated[int, Field(gt=0, le=1_000_000, strict=True)] = 4096
    """The longest sentence, in tokens. Sinusoids need no training for it; a learned table has this many rows."""


class StackConfig(Options):
    """One stack of layers: the encoder or the decoder."""

    layers: Size = 6
    """How many identical layers stand on each other (N in figure 1)."""
    heads: Size = 8
    """Attention heads in each layer; each has d_model / heads channels (§3.2.2)."""
    d_ff: Size = 2048
    """Width inside the feed-forward network (§3.3)."""


class ModelConfig(Options):
    """The Transformer. The defaults are the paper's base model."""

    architecture: Literal["encoder-decoder", "decoder-only", "encoder-only"] = "encoder-decoder"
    """encoder-decoder translates (the paper), decoder-only continues text (GPT), encoder-only reads it (BERT)."""
    vocab_size: Size = 37_000
    """Entries of the vocabulary; of the target's, where the source has its own."""
    source_vocab_size: Size | None = None
    """Entries of the source vocabulary, where it is not the target's."""
    tie: Literal["all", "target", "none"] = "all"
    """Which of source embedding, target embedding and classifier are one matrix (§3.4): all three, the last two,
    or none."""
    d_model: Size = 512
    """Width of every vector between the layers."""
    encoder: StackConfig = StackConfig()
    """The encoder's layers."""
    decoder: StackConfig = StackConfig()
    """The decoder's layers."""
    positions: PositionsConfig = PositionsConfig()
    """How positions are told."""
    activation: Literal["relu", "gelu", "gelu-tanh", "swish", "swiglu"] = "relu"
    """The function between the two layers of the feed-forward network; relu in the paper."""
    norm: Literal["post", "pre"] = "post"
    """post: normalise after each residual sum, as in the paper; pre: before each sub-layer, steadier in deep stacks."""
    norm_epsilon: Annotated[float, Field(gt=0, strict=True)] = 1e-5
    """Added to the variance before its root is taken."""
    final_norm: Flag | None = None
    """One more normalisation on top of each stack. By default with norm = "pre" only."""
    scale_embedding: Flag = True
    """Multiply embeddings by the root of d_model (§3.4)."""
    embedding_norm: Flag = False
    """Normalise the embedded tokens before the first layer (BERT)."""
    segments: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """Kinds of text segment with an embedding of their own, in an encoder-only model (BERT has 2); 0 for none."""
    attention_bias: Flag = False
    """Add a bias to the four projections of attention. The paper writes none; Marian, BERT and GPT-2 have it."""
    classifier_bias: Flag = False
    """Add a bias to the logits (Marian, BERT)."""
    source_end: Flag = True
    """Whether a source ends in the end token, as Marian's do; OpenNMT's do not. What is trained here has it."""
    dropout: Rate = 0.1
    """Dropout on embeddings and on every sub-layer's output (§5.4)."""
    attention_dropout: Rate = 0.0
    """Dropout on attention probabilities; not in the paper."""
    activation_dropout: Rate = 0.0
    """Dropout inside the feed-forward network; not in the paper."""

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The stacks this architecture has, by name."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if name in self.architecture.split("-")}

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for name, stack in self.stacks.items():
            if self.d_model % stack.heads:
                raise ValueError(
                    f"d_model = {self.d_model} cannot be divided among {name}.heads = {stack.heads}; "
                    f"make d_model a multiple of {stack.heads}"
                )
            if self.positions.kind == "rotary" and self.d_model // stack.heads % 2:
                raise ValueError(
                    f"rotary positions turn pairs of channels, and {self.d_model // stack.heads} channels a head "
                    f"(d_model / {name}.heads) is odd; choose an even number, or another positions.kind"
                )
        if self.segments and self.architecture != "encoder-only":
            raise ValueError(f"segments has no meaning in a model that is {self.architecture}; leave it out")
        if self.source_vocab_size not in (None, self.vocab_size):
            if self.architecture != "encoder-decoder":
                raise ValueError(
                    f"source_vocab_size has no meaning in a model that is {self.architecture}; leave it out"
                )
            if self.tie == "all":
                raise ValueError(
                    f'tie = "all" needs one vocabulary, but source_vocab_size = {self.source_vocab_size} and '
                    f'vocab_size = {self.vocab_size}; set tie to "target" or "none"'
                )
        timescales = self.positions
        if timescales.min_timescale >= timescales.max_timescale:
            raise ValueError(
                f"positions.min_timescale = {timescales.min_timescale:g} must be below "
                f"positions.max_timescale = {timescales.max_timescale:g}"
            )
        return self


class DataConfig(Options):
    """The text a model learns from, and what becomes of it on the way."""

    tokenizer: str | None = None
    """A vocabulary to use: a sentencepiece model, a tokenizer.json, BERT's vocab.txt, or GPT-2's vocab.json beside its
    merges.txt. Without one, a joint sentencepiece vocabulary is learned from the training text."""
    vocab_size: Size | None = None
    """Entries of the vocabulary that is learned. Left out, it is chosen from the size of the corpus."""
    max_length: Annotated[int, Field(ge=8, lt=10**6, strict=True)] = 250
    """Tokens; a pair with a longer side is left out. Texts and dialogues are cut to it."""
    max_ratio: Annotated[float, Field(gt=1, strict=True)] = 4.0
    """A pair is left out when one side has so many times the tokens of the other."""
    bpe_dropout: Rate = 0.0
    """Chance that a merge of the vocabulary is skipped, so that words are seen cut in different ways (Provilkov et al.,
    2020, arXiv:1910.13267). Helps small corpora."""
    readings: Size = 8
    """With bpe_dropout: how many cuts of the corpus are prepared; the epochs take turns."""


class TrainConfig(Options):
    """How a model is trained. The defaults are the paper's (§5)."""

    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 1
    """Decides the first weights, the order of the data and dropout. The same seed gives the same run."""
    epochs: Annotated[float, Field(gt=0, le=10**6)] = 20
    """How often the corpus is seen."""
    steps: Size | None = None
    """Updates; where it is given, it decides instead of epochs."""
    batch_tokens: Size | Literal["auto"] = 4096
    """Tokens of each side in one batch, on each device; auto finds how many the device's memory holds."""
    accumulate: Size = 1
    """Batches whose gradients are summed before one update."""
    rows: Literal["auto", "padded", "shared"] = "auto"
    """padded: sentences of similar length, one per row; shared: sentences packed into rows of a fixed length, so that
    all batches have one shape. auto: shared on a GPU, else padded."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """adam (the paper's); adamw: weight decay apart from the gradient; muon: matrices are moved by orthogonal updates,
    everything else by adamw."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """The highest rate; for schedule = "noam", a factor (1 in the paper)."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant"] = "noam"
    """How the rate goes down after the warm-up; noam is the paper's equation 3."""
    warmup: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 4000
    """Updates in which the rate goes up."""
    betas: tuple[Rate, Rate] = (0.9, 0.98)
    """Adam's two rates of forgetting."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-9
    """Added to Adam's divisor."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Pulls matrices (not norms, biases or embeddings) towards zero."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """Gradients longer than this are shortened to it; 0 leaves them."""
    smoothing: Rate = 0.1
    """Label smoothing (§5.4)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Each batch is passed twice, and the distance of the two answers is added to the loss, times this (Liang et al.,
    2021, arXiv:2106.14448). Helps small corpora, at twice the cost of a step."""
    ema: Rate = 0.0
    """Keep a running average of the weights, which forgets at this rate a step (0.999 is usual); it is what is tested
    and kept. 0: none."""
    average: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    """At the end, the model is the mean of so many tested states of the run (where that tests better)."""
    average_of: Literal["last", "best"] = "last"
    """Which states these are."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products in training. auto: bfloat16 on a GPU that has it."""
    compile: Flag | Literal["auto"] = "auto"
    """Compile the layers. auto: on a GPU, where the run is long enough to earn back the time it takes."""
    graphs: Flag | Literal["auto"] = "auto"
    """Record each step on the GPU once and replay it, so that nothing waits for Python. auto: on one GPU."""
    shard: Flag = False
    """With several processes: split weights, gradients and optimizer among them (FSDP2), instead of copying (DDP)."""
    report_every: Size = 50
    """Updates between two reports."""
    validate_every: Size | None = None
    """Updates between two tests on the validation text. Left out: at the end of each epoch, or ten times in a run,
    whichever is less often."""
    save_every: Size | None = None
    """Updates between two checkpoints to resume from. Left out: when it is tested."""
    keep_tested: Flag = False
    """Keep the first state and every tested one as a model of its own, in tested/step-<number>: to look at how it came
    to be what it is."""
    patience: Annotated[int, Field(ge=0, strict=True)] = 0
    """Stop after so many tests without a better result; 0: never."""
    best_by: Literal["loss", "bleu", "chrf"] = "bleu"
    """What decides which tested state is best. Models that do not translate are judged by loss."""
    beam: Size = 1
    """Beams of the translations a test makes."""


class SearchConfig(Options):
    """How a trained model writes its answer. The default is the paper's (§6.1): four beams."""

    beams: Annotated[int, Field(gt=0, le=1000, strict=True)] = 4
    """Hypotheses that grow side by side; 1 is greedy search. With sample: how many samples are drawn."""
    nbest: Annotated[int, Field(gt=0, le=1000, strict=True)] = 1
    """How many answers are given, the best first; at most as many as there are beams."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """α of a finished hypothesis's score, log P(y|x) / |y|^α, where |y| counts the end: 0 is the plain log-probability,
    which likes short answers; 1 is the mean over tokens; more likes long ones."""
    coverage_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    """β of Wu et al. (2016, arXiv:1609.08144), equation 14: β · Σ log min(1, attention that a source token got) is
    added to the score, so that less of the source is forgotten. The attention is that of the last decoder layer, the
    mean over its heads."""
    stop: Literal["full", "best"] = "full"
    """When a sentence is done. full: as many hypotheses have ended as there are beams, times patience. best: none that
    still grows could come to a better score than those that are given, however it goes on; slower."""
    patience: Annotated[float, Field(ge=1, le=100)] = 2.0
    """With stop = full (Kasai et al., 2022, arXiv:2204.05424): at 1 many a search ends before its best answer has come
    to its end. One beam ends with its first answer."""
    min_ratio: Annotated[float, Field(ge=0, le=100)] = 0.0
    """No answer has fewer tokens than this times those of the source."""
    max_ratio: Annotated[float, Field(gt=0, le=100)] = 2.0
    """No answer has more tokens than this times those of the source, and max_extra more."""
    max_extra: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 10
    """See max_ratio."""
    groups: Annotated[int, Field(gt=0, le=1000, strict=True)] = 1
    """Diverse beam search (Vijayakumar et al., 2018, arXiv:1610.02424): the beams are split into so many groups, and
    each is kept from saying what those before it say."""
    diversity: Annotated[float, Field(ge=0, le=100)] = 0.5
    """With groups: what a token loses for each time an earlier group takes it in the same step."""
    sample: Flag = False
    """Draw each token by its probability, instead of searching for the best."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Divides the scores before a token is drawn: below 1 it dares less, above 1 more."""
    top_k: Annotated[int, Field(ge=0, lt=10**9, strict=True)] = 0
    """Draw among so many of the likeliest tokens; 0: among all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw among the likeliest tokens that have this probability together."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Draw among tokens at least this times as likely as the likeliest."""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 1
    """Of what is drawn: the same seed draws the same for the same sentence, whatever its neighbours."""
    risk: Literal["none", "chrf"] = "none"
    """How an engine orders samples. none: by their scores. chrf: those come first that are most like the others, by the
    mean chrF against them (minimum Bayes risk; Eikema and Aziz, 2020, arXiv:2005.10283); it needs some dozens."""

    def enough(self, beams: int) -> int:
        """How many hypotheses of so many beams must have ended, with stop = full."""
        return int(beams * self.patience + 0.5) if beams > 1 else 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.nbest > self.beams:
            raise ValueError(f"nbest = {self.nbest} answers cannot come from beams = {self.beams}; ask for more beams")
        if self.beams % self.groups:
            raise ValueError(f"beams = {self.beams} cannot be split into groups = {self.groups} of one size")
        if self.sample and self.groups > 1:
            raise ValueError("sample draws every answer by itself; it has no groups")
        if self.risk != "none" and not self.sample:
            raise ValueError(f"risk = {self.risk} compares samples; ask for them by sample = true")
        return self


class ServeConfig(Options):
    """What a service gives, and to whom."""

    max_body: Annotated[int, Field(gt=0, strict=True)] = 1_000_000
    """Bytes of a request."""
    max_texts: Annotated[int, Field(gt=0, strict=True)] = 256
    """Texts of a request."""
    max_characters: Annotated[int, Field(gt=0, strict=True)] = 50_000
    """Of all texts of a request together."""
    max_tokens: Annotated[int, Field(gt=0, strict=True)] = 65_536
    """Of all texts of a request together, each counted once for every beam."""
    max_beams: Annotated[int, Field(gt=0, le=1000, strict=True)] = 16
    """Beams, or samples, of a search."""
    max_traced: Annotated[int, Field(gt=0, strict=True)] = 512
    """Tokens of a text, or of its translation, that can be looked into."""
    max_requests: Annotated[int, Field(gt=0, strict=True)] = 512
    """Requests at a time."""
    max_queue: Annotated[int, Field(gt=0, strict=True)] = 1024
    """Requests of them that wait for a model."""
    deadline: Annotated[float, Field(gt=0)] = 60.0
    """Seconds until an answer must be there."""
    receive: Annotated[float, Field(gt=0)] = 20.0
    """Seconds until all of a request must have come."""
    shutdown: Annotated[float, Field(gt=0)] = 30.0
    """Seconds in which requests may end when the service is stopped."""
    wait: Annotated[float, Field(ge=0, le=1)] = 0.005
    """Seconds that a request waits for others at most, so that they are searched together; one alone does not wait."""
    batch_tokens: Annotated[int, Field(gt=0, strict=True)] = 8192
    """Of a batch: tokens of its sources, each counted once for every beam."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Requests a minute for each key; 0: any number."""
    memory: Annotated[float, Field(ge=0)] = 0.0
    """GiB that the models may take; beyond, those that were not asked for longest are given up. 0: any number."""
    trace_memory: Annotated[float, Field(gt=0)] = 0.5
    """GiB that traces may take, before the oldest ones are forgotten."""
    origins: tuple[str, ...] = ()
    """Web pages elsewhere that may ask: https://example.org; none by itself."""


class Config(Options):
    """Everything a run is configured by."""

    model: ModelConfig = ModelConfig()
    """The Transformer itself."""
    data: DataConfig = DataConfig()
    """The text it learns from."""
    train: TrainConfig = TrainConfig()
    """How it learns."""


def presets() -> dict[str, dict[str, Any]]:
    """The named configurations that ship with Sightline, by name."""
    files = resources.files("sightline").joinpath("presets").iterdir()
    found = {
        f.name.removesuffix(".toml"): tomllib.loads(f.read_text("utf-8")) for f in files if f.name.endswith(".toml")
    }
    return dict(sorted(found.items()))


def load(preset: str | None = None, file: Path | str | None = None, sets: Iterable[str] = ()) -> Config:
    """The configuration of `preset`, overridden by the TOML `file`, overridden by each `a.b=c` of `sets`."""
    values: dict[str, Any] = {}
    if preset is not None:
        known = presets()
        if preset not in known:
            raise ConfigError(f"there is no preset {preset!r}{_suggest(preset, known)}; known are {', '.join(known)}.")
        _merge(values, known[preset])
    if file is not None:
        try:
            _merge(values, tomllib.loads(Path(file).read_text("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: cannot be read as TOML: {error}.") from None
    for assignment in sets:
        _merge(values, _parse_set(assignment))
    return Config(**values)


def load_search(sets: Iterable[str] = (), **given: Any) -> SearchConfig:
    """Options of a search: those given, overridden by each `a=b` of `sets`."""
    for assignment in sets:
        _merge(given, _parse_set(assignment))
    return SearchConfig(**given)


def load_serve(sets: Iterable[str] = (), **given: Any) -> ServeConfig:
    """Options of a service: those given, overridden by each `a=b` of `sets`."""
    for assignment in sets:
        _merge(given, _parse_set(assignment))
    return ServeConfig(**given)


def options(group: type[Options] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every option with its dotted name, in the order they are declared."""
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            yield from options(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def explained(config: Options, path: str = "") -> str:
    """All options of a configuration as TOML, each below what it means."""
    lines, groups = [f"[{path}]"] if path else [], []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Options):
            groups.append(explained(value, f"{path}.{name}".lstrip(".")))
            continue
        lines += textwrap.wrap(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"# {name} =" if value is None else f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *([""] if lines else []), *groups])


def _parse_set(assignment: str) -> dict[str, Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {assignment!r}: write it as group.option=value, for example model.d_model=256.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _config_error(error: ValidationError, group: type[BaseModel]) -> ConfigError:
    return ConfigError("\n".join(_sentence(details, group) for details in error.errors()))


def _sentence(error: ErrorDetails, group: type[BaseModel]) -> str:
    """One sentence for one of pydantic's errors: the key, the value, the way out."""
    path = [str(part) for part in error["loc"]]
    where = ".".join(path)
    for part in path if error["type"] == "model_type" else path[:-1] if error["type"] == "extra_forbidden" else []:
        group = cast("type[BaseModel]", group.model_fields[part].annotation)
    if error["type"] == "model_type":
        example = f"{where}.{next(iter(group.model_fields))}"
        return f"{where}: this is a group of options; set one of them, for example {example}."
    if error["type"] == "extra_forbidden":
        deeper = [name for name, _ in options(cast("type[Options]", group)) if name.endswith(f".{path[-1]}")]
        hint = f", did you mean {deeper[0]!r}?" if deeper else _suggest(path[-1], group.model_fields)
        hint = hint or f"; known here are {', '.join(group.model_fields)}."
        return f"{where}: there is no such option{hint}"
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}: {reason}." if where else f"{reason}."
    reason = reason.removeprefix("Input should be ")
    return f"{where}: must be {reason}, and is {error['input']!r}."

"""Requests and answers of the API."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from sightline.config import SearchConfig, TextConstraints
from sightline.trace.lineage import Rule


def _check_surrogates(text: str) -> str:
    """Refuse lone surrogates, which JSON can express and UTF-8 cannot."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text contains a lone surrogate")
    return text


CONSTRAINTS = TextConstraints.model_fields
Text = Annotated[str, AfterValidator(_check_surrogates)]
Side = Literal["source", "target"]
Model = Annotated[str | None, Field(description="Name of a model; default: the first of /v1/models.", max_length=64)]


class Body(BaseModel):
    """A request. Unknown fields are errors, and types are strict: a number is neither `true` nor `"1"`."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)


Path = Annotated[str, Field(max_length=100)]
"""The path of a module: encoder.layers.0.self_attention."""
Index = Annotated[int, Field(ge=0, lt=10**6)]
HeadNumber = Annotated[str, Field(pattern=r"^[0-9]{1,6}$")]
"""A head, from 0, as a key of a JSON object."""


class Cell(Body):
    """The probability of one cell of an attention. The other cells of its row are rescaled to sum to 1."""

    head: Index
    query: Index
    """Position of the token that attends."""
    key: Index
    """Position of the token that is attended to."""
    value: Annotated[float, Field(ge=0, le=1)]


class WhatIf(Body):
    """Changes to the model for one request (docs/guides/what-if.md). Attentions are named by path, heads and positions
    are counted from 0."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"without": ["positions"], "remove_heads": {"encoder.layers.0.self_attention": [0]}}]
        }
    )
    without: list[Path] = Field(default_factory=list)
    """Parts to switch off: positions, scale, look-ahead-mask, residuals, norms, feed-forward; below a path as in
    norms@encoder.layers.0."""
    remove_heads: dict[Path, list[Index]] = Field(default_factory=dict)
    """Heads that return zeros."""
    average_heads: dict[Path, list[Index]] = Field(default_factory=dict)
    """Heads that attend equally to all allowed keys."""
    scale_heads: dict[Path, dict[HeadNumber, Annotated[float, Field(ge=-100, le=100)]]] = Field(default_factory=dict)
    """Factors of heads."""
    set_attention: dict[Path, list[Cell]] = Field(default_factory=dict)
    """Cells to set."""

    @property
    def edits(self) -> int:
        """Number of parts, heads and cells that change."""
        paths = (self.remove_heads, self.average_heads, self.scale_heads, self.set_attention)
        return len(self.without) + sum(max(len(some), 1) for one in paths for some in one.values())

    def changes(self) -> dict[str, Any]:
        """Return the parameters of `sightline.what_if`."""
        return {
            "without": self.without,
            "remove_heads": self.remove_heads,
            "average_heads": self.average_heads,
            "scale_heads": {
                path: {int(head): factor for head, factor in heads.items()} for path, heads in self.scale_heads.items()
            },
            "set_attention": {
                path: {(cell.head, cell.query, cell.key): cell.value for cell in cells}
                for path, cells in self.set_attention.items()
            },
        }


Changes = Annotated[
    WhatIf | None, Field(description="Changes to the model for this request. Other requests are not affected.")
]


class SearchOptions(SearchConfig):
    """The options of a search. `limits.search_options` caps them."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        return self  # they need not fit each other before they are capped


class SearchRequest(SearchOptions):
    """A search for translations. `beams` is raised to `nbest`."""

    model: Model = None
    prefix: Text = Field("", description=CONSTRAINTS["prefix"].description)
    forbid: list[Text] = Field(default_factory=list, description=CONSTRAINTS["forbid"].description)
    what_if: Changes = None

    @property
    def constraints(self) -> list[str]:
        """All texts that constrain the answer."""
        return [*filter(None, [self.prefix]), *self.forbid]


class TranslateRequest(SearchRequest):
    """Texts to translate. `beams` is raised to `nbest`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "Hi, how are you?"}, {"text": ["Good morning."], "beams": 1}]}
    )
    text: Text | list[Text]
    """One text or a list of texts. Line breaks are kept."""
    require: list[Text] = Field(default_factory=list, description=CONSTRAINTS["require"].description)
    align: bool = False
    """Return the word alignment."""
    details: bool = False
    """Return tokens and their log-probabilities."""


class StreamRequest(SearchRequest):
    """A text to translate, streamed token by token."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Hi, how are you?"}]})
    text: Text
    beams: Annotated[int, Field(ge=1, le=1)] = 1
    """Streaming needs a beam size of 1."""


class Translation(Answer):
    """A translation of one text."""

    text: str
    score: float | None = None
    """log P(y|x) / |y|^α. Missing if it was not computed (`beams` 1 without `details`)."""
    tokens: list[str] | None = None
    """With `details`: the sub-words of the translation."""
    log_probs: list[float] | None = None
    """With `details`: of each token and of the end."""
    alternatives: list["Translation"] | None = None
    """With `nbest`: the next best translations."""
    alignment: list[tuple[int, int]] | None = None
    """With `align`: pairs of a source word and a target word, counted from 0. White space separates words."""


class TranslateAnswer(Answer):
    """The translations of all texts, in order."""

    model: str
    translations: list[Translation]


class Event(Answer):
    """A server-sent event: `token` with {"text": …} for each chunk of text; at the end `done` with the translation or
    `error` with a problem."""

    event: Literal["token", "done", "error"]
    data: str


class Pair(Body):
    """A source and a possible translation."""

    source: Text
    target: Text


class ScoreRequest(Body):
    """Pairs to score."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"pairs": [{"source": "Good morning.", "target": "Bonjour."}]}]}
    )
    model: Model = None
    pairs: list[Pair]
    what_if: Changes = None


class Scored(Answer):
    """The log-probability of a target."""

    log_prob: float
    tokens: list[str]
    log_probs: list[float]
    """Of each token and of the end."""


class ScoreAnswer(Answer):
    """The scores of all pairs, in order."""

    model: str
    scores: list[Scored]


class TraceRequest(SearchRequest):
    """A text to trace through the model: for a dialogue model, a turn of the user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "The animal was too tired."}]})
    text: Text
    target: Text | None = None
    """Target to trace; default: the model's own translation or reply. Only for models that translate."""


class Operand(Answer):
    """A tensor that another is computed from."""

    name: str
    rows: Literal["same", "all"]
    """The rows that one row of the result needs: the row of the same token, or all."""


class Step(Answer):
    """How a tensor is computed; docs/reference/trace.md has the rules. Without operands it is an input."""

    rule: Rule
    operands: list[Operand] = []
    weights: list[str] = []
    """Names of parameters."""
    constants: dict[str, Any] = {}


class Tensor(Answer):
    """A tensor of a trace."""

    name: str
    axes: list[str]
    shape: list[int]
    sides: dict[str, Side]
    """By axis: the side whose tokens are along it."""
    lineage: Step | None = None
    """How it is computed from others."""


class Stack(Answer):
    """A stack of the model. The last one predicts tokens."""

    name: str
    side: Side
    """The tokens that it reads."""
    causal: bool
    """Whether positions do not attend to later ones; then each position predicts the next token."""
    layers: int
    sublayers: list[str]
    """The parts of each layer, in the order of computation."""


class TraceManifest(Answer):
    """The contents of a trace: the same over HTTP and in a file (docs/reference/trace.md)."""

    version: Literal[1]
    model: str
    config: dict[str, Any]
    """The options of the model, as in docs/reference/config.md."""
    parts: int
    """Number of segments (sentences or lines) that are translated separately. If there are several, the target joins
    their translations, while the trace is one pass over the whole text, which might be translated differently."""
    tokens: dict[str, list[str]]
    """Tokens of source and target, with start and end. Decoder-only models have no source, encoder-only no target."""
    ids: dict[str, list[int]]
    """Ids of the same tokens: the input of the model."""
    stacks: list[Stack]
    """In the order of computation."""
    tensors: list[Tensor]


class TraceAnswer(TraceManifest):
    """A stored trace. Its tensors are fetched by its id until newer traces need its memory."""

    id: str
    target: str | None
    """The traced target, a translation or a reply; null for a model that writes neither."""
    log_probs: list[float | None]
    """For each position of a decoder, the log-probability of the token that follows it (after the last, of the end);
    for each position of a model without decoder, of the token itself. Null if it is not finite."""
    what_if: WhatIf | None
    """The changes to the model; null if it is unchanged."""


class LensEntry(Answer):
    """An entry of the vocabulary with its probability."""

    id: int
    token: str
    probability: float


class LensAnswer(Answer):
    """The logit lens: the likeliest entries if the model ended after the embedding (first) or after each layer."""

    layers: list[list[LensEntry]]


class TrainingRequest(Body):
    """An empty object."""


class TrainingLoss(Answer):
    """The training loss at a step."""

    step: int
    loss: float | None


class TrainingState(Answer):
    """A state of the model. Its name is accepted as `model` in all requests."""

    step: int
    model: str


class TrainingAnswer(Answer):
    """The training run of the tour."""

    allowed: bool
    """Whether this service allows training."""
    run: int
    """Number of runs that were started. States of different runs have the same names."""
    phase: Literal["none", "running", "finished", "stopped", "failed"]
    steps: int
    """Steps of a whole run; 0 before the first one."""
    losses: list[TrainingLoss]
    states: list[TrainingState]
    """States of the run; before the first run, those of a bundled model."""


class PiecesAnswer(Answer):
    """Entries of a vocabulary as text."""

    pieces: list[str]


class BeamsRequest(SearchRequest):
    """A text whose beam search is returned."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Good morning.", "beams": 3}]})
    text: Text


class Beam(Answer):
    """A hypothesis: its parent and one more token."""

    parent: int
    """Index of the parent in the list; -1 for the first token."""
    step: int
    token: str
    text: str
    """Text of the whole hypothesis, without special tokens."""
    log_prob: float
    """Log-probability of this token."""
    total: float
    """Log-probability of the whole hypothesis."""
    fate: Literal["grew", "ended", "dropped"]
    score: float | None = None
    """Of a finished hypothesis: `total` / length^α."""


class BeamsAnswer(Answer):
    """All hypotheses that were in the beam at some step."""

    model: str
    source: list[str]
    """Tokens of the text."""
    beams: list[Beam]
    translations: list[Translation]


class AlternativesRequest(SearchOptions):
    """A position in a translation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "Good morning.", "target": "Bonjour.", "position": 0}]}
    )
    model: Model = None
    text: Text
    target: Text
    """A translation of the text or its beginning."""
    position: Annotated[int, Field(ge=0, lt=10**6)]
    """Number of tokens before the position (the tokens of /v1/score)."""
    count: Annotated[int, Field(ge=1, le=20)] = 5
    what_if: Changes = None


class Alternative(Answer):
    """An alternative token."""

    token: str
    log_prob: float
    text: str
    """The whole translation with this token."""


class AlternativesAnswer(Answer):
    """Alternatives at a position, most likely first."""

    model: str
    alternatives: list[Alternative]


class ModelAbout(Answer):
    """A model of this service, in OpenAI's form with more fields."""

    id: str
    """The name."""
    object: Literal["model"] = "model"
    created: int
    """Time of its files, in seconds since 1970."""
    owned_by: Literal["sightline"] = "sightline"
    name: str
    task: Literal["translate", "write", "chat", "read"]
    """Only models that translate answer requests for translations; all can be traced."""
    architecture: str
    parameters: int
    loaded: bool
    """Other models are loaded on their first request."""
    source: str | None
    """Source language, if it is in the name: en of en-fr."""
    target: str | None
    examples: list[str]
    """Sentences to try, from examples.txt in the model folder."""
    about: str | None
    """A comment on them: the lines of this file that begin with #."""


class ModelsAnswer(Answer):
    """The models of this service. The first is the default."""

    object: Literal["list"] = "list"
    data: list[ModelAbout]


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    """Send the usage in a last event, which has no choices."""


class CompletionRequest(Body):
    """Texts to continue, in the form of OpenAI's API. A missing field and null are the same."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.8}]}
    )
    model: Annotated[str | None, Field(max_length=64)] = None
    """Name of a model; default: the first of /v1/models that writes."""
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[list[int]], Field(min_length=1)]
    ) = ""
    """A text, several texts, the ids of a text, or those of several texts. An empty text begins a new one."""
    max_tokens: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    """Maximum tokens of a continuation; default: 16. 0 returns none, for the log-probabilities of the prompt."""
    n: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Number of continuations of each prompt; default: 1."""
    echo: bool | None = None
    """Return the prompt before each continuation."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Return log-probabilities, of each token and of this many of the likeliest tokens in its place."""
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    """Texts before the first of which a continuation ends."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """The same seed gives the same continuations of a prompt. Without one, each request has its own."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Sampling temperature; default: 1. 0 takes the likeliest token each time."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample from the most likely tokens whose probabilities add up to this; default: 1."""
    top_k: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    """Sample from the k most likely tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample from tokens with at least this probability relative to the most likely token."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Subtracted from the score of each token that the continuation contains already."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Subtracted from the score of a token for each time that the continuation contains it already."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Divides positive scores, and multiplies negative ones, of the tokens of the text so far."""
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    """Added to the scores of tokens, by their ids."""
    stream: bool | None = None
    """Send the continuations in parts, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    user: Text | None = None
    """Ignored."""
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    """Only 1: all continuations are returned. Use `n`."""
    suffix: None = None
    """Not supported: models read from left to right only."""

    @field_validator("best_of", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        if value not in (None, 1):
            raise ValueError(f"must be 1, got {value}: all continuations are returned. Use `n`")
        return value

    @field_validator("suffix", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        if value not in (None, ""):
            raise ValueError("is not supported: models read from left to right only. Leave it out")
        return None


class CompletionLogprobs(Answer):
    """Log-probabilities of the model, before temperature and penalties."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    """The likeliest tokens at each position, and the token itself. Null with `logprobs` 0."""
    text_offset: list[int]
    """Where each token begins, in characters of `text`."""

    def joined(self, other: "CompletionLogprobs") -> "CompletionLogprobs":
        """Return these log-probabilities followed by others."""
        tops = None if self.top_logprobs is None else self.top_logprobs + (other.top_logprobs or [])
        return CompletionLogprobs(
            tokens=self.tokens + other.tokens,
            token_logprobs=self.token_logprobs + other.token_logprobs,
            top_logprobs=tops,
            text_offset=self.text_offset + other.text_offset,
        )


class CompletionChunkChoice(Answer):
    """A part of a continuation."""

    index: int
    """Number of the choice: those of the first prompt come first."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None = None
    """null before the last part of this choice."""


class CompletionChoice(CompletionChunkChoice):
    """A continuation."""

    finish_reason: Literal["stop", "length"]
    """stop: the model or a stop string ended it; length: it has `max_tokens`, or the model has no more positions."""


class Usage(Answer):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(Answer):
    """The continuations of all prompts."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(Answer):
    """An event of streamed continuations."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    """With `include_usage`: null, but in the last event."""


class CompletionEvent(Answer):
    """A server-sent event: `data` is a chunk, {"error": …} or, at the end, [DONE]."""

    data: str


class LibreRequest(BaseModel):
    """A text to translate, in the form of LibreTranslate."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"q": "Good morning.", "source": "en", "target": "fr"}]},
    )
    q: Text | list[Text]
    source: Text
    """A language of /languages; auto if only one source language is possible."""
    target: Text
    format: Literal["text"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0
    """Number of other translations."""
    api_key: str = ""


class LibreAnswer(Answer):
    """The translation in the form of LibreTranslate: a text for a text, a list for a list."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's name
    alternatives: Any = None


class Language(Answer):
    """A source language and its target languages."""

    code: str
    name: str
    targets: list[str]

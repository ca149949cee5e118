"""What requests and answers are made of."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sightline.config import SearchConfig

__all__ = [
    "Alternative",
    "AlternativesAnswer",
    "AlternativesRequest",
    "Beam",
    "BeamsAnswer",
    "BeamsRequest",
    "Language",
    "LibreAnswer",
    "LibreRequest",
    "ModelAbout",
    "ModelsAnswer",
    "Pair",
    "PiecesAnswer",
    "ScoreAnswer",
    "ScoreRequest",
    "Scored",
    "SearchRequest",
    "StreamRequest",
    "Tensor",
    "TraceAnswer",
    "TraceRequest",
    "TranslateAnswer",
    "TranslateRequest",
    "Translation",
]


def _whole(text: str) -> str:
    """JSON can write half a character (a lone surrogate), which no text has."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("half a character (a lone surrogate) is no text")
    return text


Text = Annotated[str, AfterValidator(_whole)]
Model = Annotated[
    str | None, Field(description="The name of a model; without one, the first of /v1/models.", max_length=64)
]


class Body(BaseModel):
    """A request: closed to what it does not know, and a number is neither true nor "1"."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class SearchRequest(Body):
    """How an answer is searched for."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 4
    """Hypotheses that grow side by side; 1 is greedy search. With sample: how many samples are drawn."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """0 likes short answers, 1 is the mean over tokens."""
    prefix: Text = ""
    """How the answer must begin."""

    def config(self) -> SearchConfig:
        """The same, as a search takes it."""
        own = self.model_dump(include={*SearchConfig.model_fields})
        return SearchConfig(beams=max(self.beam, own.get("nbest", 1)), **own)


class SamplingRequest(SearchRequest):
    """How an answer is searched for, or drawn."""

    sample: bool = False
    """Draw each token by its probability, instead of searching for the best."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Of samples: below 1 they dare less, above 1 more."""
    top_k: Annotated[int, Field(ge=0, lt=10**9)] = 0
    """Of samples: draw among so many of the likeliest tokens; 0: among all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of samples: draw among the likeliest tokens that have this probability together."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of samples: draw among tokens at least this times as likely as the likeliest."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Of samples: the same seed draws the same for the same text."""
    without: list[Text] = []
    """Words that no answer may have."""


class TranslateRequest(SamplingRequest):
    """Texts to translate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "Hi, how are you?"}, {"text": ["Good morning."], "beam": 1}]}
    )
    model: Model = None
    text: Text | list[Text]
    """A text, or several. A text with several lines keeps them."""
    nbest: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many answers are given, the best first; there are at least as many beams."""
    within: list[Text] = []
    """Words that every answer has."""
    align: bool = False
    """Tell which word comes from which."""
    details: bool = False
    """Tell the tokens and their log-probabilities."""


class StreamRequest(SamplingRequest):
    """A text to translate, word by word."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Hi, how are you?"}]})
    model: Model = None
    text: Text
    beam: Annotated[int, Field(ge=1, le=1)] = 1
    """One: several beams change their mind."""


class Translation(Answer):
    """An answer to one text."""

    text: str
    score: float | None = None
    """log P(y|x) / |y|^α; not there where it was not computed (one beam, without details)."""
    tokens: list[str] | None = None
    """With details: the sub-words it was written in."""
    log_probs: list[float] | None = None
    """With details: of each token, and of the end after it."""
    alternatives: list["Translation"] | None = None
    """With nbest: the next best ones."""
    alignment: list[tuple[int, int]] | None = None
    """With align: pairs of a source word and a word of this text. Words are what white space separates, from 0."""


class TranslateAnswer(Answer):
    """The translations of all texts, in order."""

    model: str
    translations: list[Translation]


class Pair(Body):
    """A source, and what might be its translation."""

    source: Text
    target: Text


class ScoreRequest(Body):
    """Pairs to score."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"pairs": [{"source": "Good morning.", "target": "Bonjour."}]}]}
    )
    model: Model = None
    pairs: list[Pair]


class Scored(Answer):
    """How probable a target is."""

    log_prob: float
    tokens: list[str]
    log_probs: list[float]
    """Of each token, and of the end after it."""


class ScoreAnswer(Answer):
    """The scores of all pairs, in order."""

    model: str
    scores: list[Scored]


class TraceRequest(SearchRequest):
    """A text to look into the model with."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "The animal was too tired."}]})
    model: Model = None
    text: Text
    target: Text | None = None
    """What the model writes for it; without, its own translation. Only for a model that translates."""


class Tensor(Answer):
    """One of the tensors of a trace."""

    name: str
    axes: list[str]
    shape: list[int]


class TraceAnswer(Answer):
    """What a trace has. The numbers are fetched by its id, for as long as it is remembered."""

    id: str
    model: str
    target: str | None
    """What the model wrote; null where it does not translate."""
    parts: int
    """In how many parts, sentences or lines, the model translates the text. Of several, the target is what it wrote for
    them all, while the trace is of one pass over the whole text, in which it might have written something else."""
    config: dict[str, Any]
    """The options of the model, as docs/reference/config.md has them."""
    tokens: dict[str, list[str]]
    """Of source and target, with start and end. A decoder alone has no source, an encoder alone no target."""
    ids: dict[str, list[int]]
    """The numbers of the same tokens, as the model was given them."""
    tensors: list[Tensor]


class PiecesAnswer(Answer):
    """Entries of a vocabulary, as they are written there."""

    pieces: list[str]


class BeamsRequest(SearchRequest):
    """A text whose search is to be shown."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Good morning.", "beam": 3}]})
    model: Model = None
    text: Text
    nbest: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many answers are given."""


class Beam(Answer):
    """A hypothesis: what its parent says, and one token more."""

    parent: int
    """Its number in the list; -1 where nothing was said yet."""
    step: int
    token: str
    text: str
    """All that it says; special tokens say nothing."""
    log_prob: float
    """Of the token alone."""
    total: float
    """Of the whole hypothesis."""
    fate: Literal["grew", "ended", "dropped"]
    score: float | None = None
    """Of one that ended: the total by its length."""


class BeamsAnswer(Answer):
    """All hypotheses that were among the best at some step."""

    model: str
    source: list[str]
    """The tokens of the text."""
    beams: list[Beam]
    translations: list[Translation]


class AlternativesRequest(Body):
    """A place in a translation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "Good morning.", "target": "Bonjour.", "position": 0}]}
    )
    model: Model = None
    text: Text
    target: Text
    """A translation of the text, or its beginning."""
    position: Annotated[int, Field(ge=0, lt=10**6)]
    """How many tokens stand before it (those of /v1/score)."""
    count: Annotated[int, Field(ge=1, le=20)] = 5
    beam: Annotated[int, Field(ge=1, le=1000)] = 4


class Alternative(Answer):
    """What could stand there."""

    token: str
    log_prob: float
    text: str
    """The whole translation, if this token is taken."""


class AlternativesAnswer(Answer):
    """What could stand there, the likeliest first."""

    model: str
    alternatives: list[Alternative]


class ModelAbout(Answer):
    """A model of this service."""

    name: str
    architecture: str
    parameters: int
    loaded: bool
    """Others are loaded when somebody asks for them."""
    source: str | None
    """The language of its sources, where its name tells: en of en-fr."""
    target: str | None
    examples: list[str]
    """Sentences to try it with, as examples.txt in its folder has them, if there is such."""
    about: str | None
    """What is to be known of them: the lines there that begin with #."""


class ModelsAnswer(Answer):
    """The models of this service. The first is taken where none is named."""

    models: list[ModelAbout]


class LibreRequest(BaseModel):
    """A text to translate, as LibreTranslate has it."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"q": "Good morning.", "source": "en", "target": "fr"}]},
    )
    q: Text | list[Text]
    source: Text
    """A language of /languages; auto, where only one can be meant."""
    target: Text
    format: Literal["text"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0
    """How many other translations are given."""
    api_key: str = ""


class LibreAnswer(Answer):
    """The translation, as LibreTranslate gives it: one for a text, a list for a list."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's name
    alternatives: Any = None


class Language(Answer):
    """A language that texts may be in."""

    code: str
    name: str
    targets: list[str]

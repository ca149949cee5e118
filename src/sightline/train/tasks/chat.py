"""Chat: replies of a dialogue. An encoder-decoder model reads the history as its source; a decoder-only model reads the
whole dialogue (`sightline.text.dialogue`)."""

from collections.abc import Iterator

from sightline.config import Config
from sightline.data.corpus import Dialogue, ReadLines, read_dialogues
from sightline.data.examples import DialogueExamples, MakeExamples, ReplyExamples
from sightline.text.dialogue import ROLE_TOKENS
from sightline.train.tasks.base import Task, context, language_preset


def texts(corpus: Dialogue, read: ReadLines | None) -> Iterator[tuple[str, ...]]:
    """Yield the turns of each dialogue."""
    return (tuple(turns) for turns in read_dialogues(corpus, read))


def examples(config: Config) -> MakeExamples:
    """Return replies with their histories, or whole dialogues."""
    if config.model.architecture == "encoder-decoder":
        return ReplyExamples(context(config))
    return DialogueExamples(context(config))


CHAT = Task(
    name="chat",
    architectures=("decoder-only", "encoder-decoder"),
    preset=language_preset,
    texts=texts,
    examples=examples,
    special=tuple(ROLE_TOKENS.values()),
)

"""Writing: a language model reads plain text and predicts each next token (GPT)."""

from collections.abc import Iterator

from sightline.config import Config
from sightline.data.corpus import ReadLines, Text, lines
from sightline.data.examples import TextExamples
from sightline.train.tasks.base import Task, context, language_preset


def texts(corpus: Text, read: ReadLines | None) -> Iterator[tuple[str, ...]]:
    """Yield each line."""
    return ((line,) for line in lines(corpus.path, read))


def examples(config: Config) -> TextExamples:
    """Return pieces of text."""
    return TextExamples(context(config))


WRITE = Task(
    name="write",
    architectures=("decoder-only",),
    preset=language_preset,
    texts=texts,
    examples=examples,
)

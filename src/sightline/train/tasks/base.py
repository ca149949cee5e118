"""What a task is: all that training needs to know about it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sightline.config import Config
from sightline.data.batches import MakeBatch, collate
from sightline.data.corpus import ReadLines
from sightline.data.examples import MakeExamples
from sightline.data.store import Store
from sightline.errors import ConfigError, InputError
from sightline.model_folder import Task as TaskName
from sightline.text.tokenizer import Tokenizer
from sightline.train.step import Objective
from sightline.train.validate import Answer


def plain_batches(_: Tokenizer) -> MakeBatch:
    """Return the batches of sources and targets as they are."""
    return collate


@dataclass(frozen=True)
class Task:
    """A task. `dataclasses.replace` makes a new one from another."""

    name: TaskName
    """In the model's config.json; `sightline.load` chooses the engine by it."""
    architectures: tuple[str, ...]
    """The architectures that can learn it."""
    preset: Callable[[int], str]
    """Return the preset for a number of examples."""
    texts: Callable[[Any, ReadLines | None], Iterator[tuple[str, ...]]]
    """Yield the texts of each example of a corpus, to count examples and to learn a vocabulary."""
    examples: Callable[[Config], MakeExamples]
    """Return the examples to train on."""
    valid_examples: Callable[[Config], MakeExamples] | None = None
    """Return the examples to validate on; by default those to train on."""
    special: tuple[str, ...] = ()
    """Special tokens of a vocabulary that is learned for the task."""
    batches: Callable[[Tokenizer], MakeBatch] = plain_batches
    """Return the function that makes batches of examples."""
    objective: Callable[..., nn.Module] = Objective
    """The model followed by its loss."""
    answer: Answer | None = None
    """Answers validation texts, which are scored against references. None: validation has a loss alone."""
    source_length: Callable[[Store, Tokenizer], int | None] = lambda *_: None
    """Return `trained_source_length` for the model folder."""


def choose_task(tasks: Sequence[Task], config: Config) -> Task:
    """Return the task that a model with these options can learn."""
    found = config.model.architecture
    if not config.model.source_end:
        problem = "must be true for training: training sources end in the end token."
        raise ConfigError.of("model.source_end", False, problem)
    for task in tasks:
        if found in task.architectures:
            return task
    needed = " or ".join(name for task in tasks for name in task.architectures)
    problem = f"is {found}; this text needs {needed}. Choose another preset."
    raise InputError.of("model.architecture", found, problem)


def language_preset(examples: int) -> str:
    """Return the preset of a language model for a number of examples."""
    return "gpt-tiny" if examples < 1_000_000 else "gpt-small"


def context(config: Config) -> int:
    """Return the tokens of a piece of text: with START, as many as the model reads."""
    return min(config.data.max_length, config.model.positions.max_length) - 1

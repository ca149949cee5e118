"""Tasks: what a model is trained to do. Each has its preset, examples, batches, loss and validation."""

from sightline.train.tasks.base import Task, choose_task
from sightline.train.tasks.chat import CHAT
from sightline.train.tasks.mask import MASK
from sightline.train.tasks.translate import TRANSLATE
from sightline.train.tasks.write import WRITE

__all__ = ["CHAT", "MASK", "TASKS", "TRANSLATE", "WRITE", "Task", "choose_task"]

TASKS = {"pairs": (TRANSLATE,), "text": (WRITE, MASK), "dialogue": (CHAT,)}
"""The tasks for each kind of text; the model decides between several."""

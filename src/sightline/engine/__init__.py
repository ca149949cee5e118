"""Engines: the objects that translate, write and read text with a model."""

from sightline.engine.base import Engine
from sightline.engine.load import LoadOptions, load, load_translator
from sightline.engine.reader import Reader
from sightline.engine.results import Alternative, Completion, Plan, Result, Scored, Segment, Translation
from sightline.engine.translator import Translator
from sightline.engine.writer import Writer

__all__ = [
    "Alternative",
    "Completion",
    "Engine",
    "LoadOptions",
    "Plan",
    "Reader",
    "Result",
    "Scored",
    "Segment",
    "Translation",
    "Translator",
    "Writer",
    "load",
    "load_translator",
]

"""Engines: the objects that translate, write, chat and read with a model."""

from sightline.config import LoadOptions
from sightline.engine.base import Engine
from sightline.engine.chat import Chat
from sightline.engine.load import load, load_translator, load_writer
from sightline.engine.reader import Reader
from sightline.engine.results import (
    Alternative,
    Candidate,
    Completion,
    Filled,
    LikelyToken,
    MaskedWord,
    Plan,
    Reply,
    Result,
    Scored,
    ScoredText,
    Segment,
    Translation,
)
from sightline.engine.translator import Translator
from sightline.engine.writer import Writer

__all__ = [
    "Alternative",
    "Candidate",
    "Chat",
    "Completion",
    "Engine",
    "Filled",
    "LikelyToken",
    "LoadOptions",
    "MaskedWord",
    "Plan",
    "Reader",
    "Reply",
    "Result",
    "Scored",
    "ScoredText",
    "Segment",
    "Translation",
    "Translator",
    "Writer",
    "load",
    "load_translator",
    "load_writer",
]

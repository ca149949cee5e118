"""The models of a service: known by name, loaded when somebody asks for them, given up when memory is short."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sightline.engine import Engine, Reader
from sightline.errors import InputError, SightlineError
from sightline.model_folder import ModelFolder
from sightline.serve.problems import Problem

__all__ = ["NAMES", "Models", "named"]

log = logging.getLogger("sightline.serve")
NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "ga": "Irish", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nb": "Norwegian",
    "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""Of languages, by the codes that model names have."""
LANGUAGES = re.compile(r"(?:^|.*[^a-z])([a-z]{2,3})[-_]([a-z]{2,3})(?:[^a-z].*)?", re.DOTALL)


def named(models: Sequence[str]) -> dict[str, Path]:
    """The folders of `NAME=FOLDER` or `FOLDER`, which then is called by its last part."""
    folders: dict[str, Path] = {}
    for model in models:
        name, is_named, folder = model.partition("=")
        path = ModelFolder(folder if is_named else model).path
        name = name if is_named else path.resolve().name
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise InputError(f"{name!r}: a model is called by letters, digits, - _ and .; give it a name: NAME={path}.")
        if name in folders:
            raise InputError(f"two models are called {name}; give one of them another name: NAME={path}.")
        folders[name] = path
    if not folders:
        raise InputError("there is no model to serve; name the folder of one.")
    return folders


@dataclass
class Entry:
    """One of them."""

    folder: Path
    parameters: int
    architecture: str
    languages: tuple[str, str] | None
    """Of its sources and of its answers, where its name tells: en-fr, opus-mt-en-fr."""
    examples: list[str]
    """Sentences to try it with,"""
    about: str | None
    """and what is to be known of them."""
    engine: Engine | Reader | None = None
    bytes: int = 0
    used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Models:
    """All of them, by name."""

    def __init__(self, folders: dict[str, Path], load: Callable[[Path], Engine | Reader], memory: float = 0.0) -> None:
        """`memory`: GiB that they may take; 0 is any number. Folders that are no models are found out at once."""
        self.entries = {name: _entry(name, folder) for name, folder in folders.items()}
        self.default = next(iter(self.entries))
        self._load, self._memory = load, memory * 2**30
        # OpenMP lets threads wait for each other by spinning only while it has no more of them than there are cores.
        # So no thread but a model's own computes with several: steps of a search take twice as long otherwise.
        self._loader = ThreadPoolExecutor(1, "loader", torch.set_num_threads, (1,))

    def entry(self, name: str | None) -> tuple[str, Entry]:
        """One by its name; without, the first."""
        name = self.default if name is None else name
        if name not in self.entries:
            raise Problem("not-found", f"there is no model of this name; there are {', '.join(self.entries)}.")
        return name, self.entries[name]

    async def engine(self, name: str | None) -> tuple[str, Engine]:
        """One that translates, ready for use."""
        name, found = await self.opened(name)
        if not isinstance(found, Engine):
            raise Problem("invalid", f"the model {name} is {found.model.config.architecture} and does not translate.")
        return name, found

    async def opened(self, name: str | None) -> tuple[str, Engine | Reader]:
        """One of any kind, ready for use."""
        name, entry = self.entry(name)
        entry.used = time.monotonic()
        if entry.engine is None:
            async with entry.lock:
                if entry.engine is None:
                    await self._fill(name, entry)
        assert entry.engine is not None  # noqa: S101
        return name, entry.engine

    def load_first(self) -> None:
        """Load the one that is taken where none is named; before anything is served."""
        entry = self.entries[self.default]
        entry.engine = self._loader.submit(self._load, entry.folder).result()
        entry.bytes = _bytes(entry.engine)

    async def reload(self) -> None:
        """Load all that are loaded anew. Meanwhile, and where that fails, the old ones go on."""
        for name, entry in self.entries.items():
            async with entry.lock:
                if entry.engine is not None:
                    try:
                        await self._fill(name, entry)
                    except Problem:
                        log.error("reload failed", extra={"about": {"model": name}})  # why, has been logged

    def close(self) -> None:
        """Load nothing more."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _fill(self, name: str, entry: Entry) -> None:
        began = time.perf_counter()
        try:
            engine = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, entry.folder)
        except Exception as error:
            known = isinstance(error, SightlineError)
            log.error("model failed", extra={"about": {"model": name, "why": str(error)}}, exc_info=not known)
            raise Problem("unavailable", f"the model {name} cannot be loaded; the log says why.", retry=60) from None
        entry.engine, entry.bytes = engine, _bytes(engine)
        about = {"model": name, "seconds": round(time.perf_counter() - began, 1), "MiB": entry.bytes >> 20}
        log.info("model loaded", extra={"about": about})
        self._make_room(name)

    def _make_room(self, newest: str) -> None:
        """Give up those that nobody has asked for for longest. What still runs on them ends as it would."""
        loaded = {name: entry for name, entry in self.entries.items() if entry.engine is not None}
        for name, entry in sorted(loaded.items(), key=lambda one: one[1].used):
            if not self._memory or sum(one.bytes for one in loaded.values()) <= self._memory:
                return
            if name != newest:
                entry.engine = None
                del loaded[name]
                log.info("model given up", extra={"about": {"model": name, "MiB": entry.bytes >> 20}})


def _entry(name: str, folder: Path) -> Entry:
    """What can be known of a model without loading it, which is also whether it is one."""
    model = ModelFolder(folder)
    model.load_tokenizer()
    parameters, architecture = model.count_parameters(), model.config.architecture
    found = LANGUAGES.fullmatch(name) if architecture == "encoder-decoder" else None
    known = found is not None and {found[1], found[2]} <= NAMES.keys()
    languages = (found[1], found[2]) if found and known else None
    return Entry(folder, parameters, architecture, languages, *model.examples())


def _bytes(engine: Engine | Reader) -> int:
    models = engine.models if isinstance(engine, Engine) else [engine.model]
    own = sum(p.numel() * p.element_size() for model in models for p in model.parameters())
    return own * (2 if isinstance(engine, Engine) and engine.fast is not None else 1)

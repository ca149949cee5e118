"""The models of a service: loaded on demand, unloaded when they exceed the memory budget."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sightline.engine import Engine, Translator
from sightline.errors import InputError, SightlineError
from sightline.model_folder import ModelFolder
from sightline.serve.problems import Problem

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
"""Names of languages by the codes in model names."""
LANGUAGES = re.compile(r"(?:^|.*[^a-z])([a-z]{2,3})[-_]([a-z]{2,3})(?:[^a-z].*)?", re.DOTALL)


def named(models: Sequence[str]) -> dict[str, Path]:
    """Return folders by model name from `NAME=FOLDER` or `FOLDER`, whose last part is the name."""
    folders: dict[str, Path] = {}
    for model in models:
        name, is_named, folder = model.partition("=")
        path = ModelFolder(folder if is_named else model).path
        name = name if is_named else path.resolve().name
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            message = f"`models`: invalid name {name!r}. Use letters, digits, - _ and . as in NAME={path}."
            raise InputError(message, option="models", value=name)
        if name in folders:
            message = f"`models`: duplicate name {name!r}. Rename one of them, as in NAME={path}."
            raise InputError(message, option="models", value=name)
        folders[name] = path
    if not folders:
        raise InputError.of("models", models, "is empty. Name at least one model.")
    return folders


@dataclass
class Entry:
    """A model of the service. `engine` is set when it is loaded."""

    folder: Path
    parameters: int
    architecture: str
    languages: tuple[str, str] | None
    """Source and target language, if they are in its name: en-fr, opus-mt-en-fr."""
    examples: list[str]
    """Sentences to try."""
    about: str | None
    """A comment on the examples."""
    engine: Engine | None = None
    bytes: int = 0
    used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Models:
    """Models by name."""

    def __init__(self, folders: dict[str, Path], load: Callable[[Path], Engine], memory: float = 0.0) -> None:
        """Check the folders. `memory`: budget for loaded models in GiB; 0 is unlimited."""
        self.entries = {name: _entry(name, folder) for name, folder in folders.items()}
        self.default = next(iter(self.entries))
        self._load, self._memory = load, memory * 2**30
        # OpenMP threads wait by spinning only while there are no more of them than cores. So only the thread of the
        # model computes with several threads; otherwise the steps of a search take twice as long.
        self._loader = ThreadPoolExecutor(1, "loader", torch.set_num_threads, (1,))

    def entry(self, name: str | None) -> tuple[str, Entry]:
        """Return a model by name, by default the first."""
        name = self.default if name is None else name
        if name not in self.entries:
            raise Problem("not-found", f"Unknown model. Available models: {', '.join(self.entries)}.")
        return name, self.entries[name]

    async def engine(self, name: str | None) -> tuple[str, Translator]:
        """Return a translator, loaded."""
        name, found = await self.opened(name)
        if not isinstance(found, Translator):
            raise Problem("invalid", f"`model` {name} is {found.model.config.architecture} and cannot translate.")
        return name, found

    async def opened(self, name: str | None) -> tuple[str, Engine]:
        """Return a model of any task, loaded."""
        name, entry = self.entry(name)
        entry.used = time.monotonic()
        if entry.engine is None:
            async with entry.lock:
                if entry.engine is None:
                    await self._load_entry(name, entry)
        assert entry.engine is not None  # noqa: S101
        return name, entry.engine

    def load_first(self) -> None:
        """Load the default model, before the service starts."""
        entry = self.entries[self.default]
        entry.engine = self._loader.submit(self._load, entry.folder).result()
        entry.bytes = entry.engine.memory_bytes

    async def reload(self) -> None:
        """Reload the loaded models from their folders. The old ones serve until then, and if reloading fails."""
        for name, entry in self.entries.items():
            async with entry.lock:
                if entry.engine is not None:
                    try:
                        await self._load_entry(name, entry)
                    except Problem:
                        log.error("reload failed", extra={"about": {"model": name}})  # the reason is logged

    def close(self) -> None:
        """Stop loading models."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _load_entry(self, name: str, entry: Entry) -> None:
        began = time.perf_counter()
        try:
            engine = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, entry.folder)
        except Exception as error:
            known = isinstance(error, SightlineError)
            log.error("model failed", extra={"about": {"model": name, "error": str(error)}}, exc_info=not known)
            raise Problem(
                "unavailable", f"`model` {name} cannot be loaded. See the log of the service.", retry=60
            ) from None
        entry.engine, entry.bytes = engine, engine.memory_bytes
        about = {"model": name, "seconds": round(time.perf_counter() - began, 1), "MiB": entry.bytes >> 20}
        log.info("model loaded", extra={"about": about})
        self._unload_others(name)

    def _unload_others(self, newest: str) -> None:
        """Unload the least recently used models until the others fit. Requests in progress keep theirs."""
        loaded = {name: entry for name, entry in self.entries.items() if entry.engine is not None}
        for name, entry in sorted(loaded.items(), key=lambda one: one[1].used):
            if not self._memory or sum(one.bytes for one in loaded.values()) <= self._memory:
                return
            if name != newest:
                entry.engine = None
                del loaded[name]
                log.info("model unloaded", extra={"about": {"model": name, "MiB": entry.bytes >> 20}})


def _entry(name: str, folder: Path) -> Entry:
    """Check a model folder and read its facts, without loading the model."""
    model = ModelFolder(folder)
    model.load_tokenizer()
    parameters, architecture = model.count_parameters(), model.config.architecture
    found = LANGUAGES.fullmatch(name) if architecture == "encoder-decoder" else None
    known = found is not None and {found[1], found[2]} <= NAMES.keys()
    languages = (found[1], found[2]) if found and known else None
    return Entry(folder, parameters, architecture, languages, *model.examples())

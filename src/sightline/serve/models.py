"""The models of a service: loaded on demand, unloaded when they exceed the memory budget."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from sightline.engine import Chat, Engine, Reader, Translator, Writer
from sightline.errors import InputError, SightlineError
from sightline.model_folder import ModelFolder, Task, bundled_models
from sightline.serve.problems import Problem

E = TypeVar("E", bound=Engine)
TASKS: dict[type[Engine], Task] = {Translator: "translate", Writer: "write", Chat: "chat", Reader: "read"}
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


def bundled() -> list[str]:
    """Return the names of the bundled models, the largest first: it is the default of the service."""
    return sorted(bundled_models(), key=lambda name: -ModelFolder(name).count_parameters())


@dataclass
class Entry:
    """A model of the service. `engine` is set when it is loaded."""

    name: str
    folder: Path
    task: Task
    architecture: str
    parameters: int
    source: str | None
    """Source language, if the name has both: en of en-fr and of opus-mt-en-fr."""
    target: str | None
    examples: list[str]
    """Sentences to try."""
    about: str | None
    """A comment on the examples."""
    created: int = 0
    """Time of its weights, in seconds since 1970."""
    engine: Engine | None = None
    bytes: int = 0
    used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        """The name, as OpenAI's clients call it."""
        return self.name

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return self.engine is not None


class Models:
    """Models by name."""

    def __init__(self, folders: dict[str, Path], load: Callable[[Path], Engine], memory: float = 0.0) -> None:
        """Check the folders. `memory`: budget for loaded models in GiB; 0 is unlimited."""
        self.entries = {name: _entry(name, folder) for name, folder in folders.items()}
        self.default = next(iter(self.entries))
        self.find_state: Callable[[str], Path | None] = lambda _: None
        """Returns the folder of a state of a training run by its name. These models are not listed."""
        self._states: dict[str, Entry] = {}
        self._load, self._memory = load, memory * 2**30
        # OpenMP threads wait by spinning only while there are no more of them than cores. So only the thread of the
        # model computes with several threads; otherwise the steps of a search take twice as long.
        self._loader = ThreadPoolExecutor(1, "loader", torch.set_num_threads, (1,))

    async def engine(self, name: str | None, kind: type[E]) -> tuple[str, E]:
        """Return the name and the engine of a model, by default the first; load it if necessary. A model of another
        task is refused before it is loaded."""
        entry = self.entries.get(self.default if name is None else name) or self._state(name)
        if entry is None:
            raise Problem("not-found", f"Unknown model. Available models: {', '.join(self.entries)}.", param="model")
        task = TASKS.get(kind, entry.task)
        if entry.task != task:
            raise Problem("invalid", f"`model` {entry.name} does not {task}. Its task is {entry.task}.", param="model")
        entry.used = time.monotonic()
        if entry.engine is None:
            async with entry.lock:
                if entry.engine is None:
                    await self._load_entry(entry)
        assert isinstance(entry.engine, kind)  # noqa: S101
        return entry.name, entry.engine

    def _state(self, name: str | None) -> Entry | None:
        """Return the entry of a state of the training run. Another run has other folders."""
        folder = None if name is None else self.find_state(name)
        if name is None or folder is None:
            return None
        if name not in self._states or self._states[name].folder != folder:
            self._states[name] = _entry(name, folder)
        return self._states[name]

    def load_first(self) -> None:
        """Load the default model, before the service starts."""
        entry = self.entries[self.default]
        entry.engine = self._loader.submit(self._load, entry.folder).result()
        entry.bytes = entry.engine.memory_bytes

    async def reload(self) -> None:
        """Reload the loaded models from their folders. The old ones serve until then, and if reloading fails."""
        for entry in self.entries.values():
            async with entry.lock:
                if entry.loaded:
                    try:
                        await self._load_entry(entry)
                    except Problem:
                        log.error("reload failed", extra={"about": {"model": entry.name}})  # the reason is logged

    def close(self) -> None:
        """Stop loading models."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _load_entry(self, entry: Entry) -> None:
        began, about = time.perf_counter(), {"model": entry.name}
        try:
            engine = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, entry.folder)
        except Exception as error:
            known = isinstance(error, SightlineError)
            log.error("model failed", extra={"about": {**about, "error": str(error)}}, exc_info=not known)
            detail = f"`model` {entry.name} cannot be loaded. See the log of the service."
            raise Problem("unavailable", detail, retry=60) from None
        entry.engine, entry.bytes = engine, engine.memory_bytes
        numbers = {"seconds": round(time.perf_counter() - began, 1), "MiB": entry.bytes >> 20}
        log.info("model loaded", extra={"about": {**about, **numbers}})
        self._unload_others(entry)

    def _unload_others(self, newest: Entry) -> None:
        """Unload the least recently used models until the others fit. Requests in progress keep theirs."""
        loaded = sorted((one for one in self.entries.values() if one.loaded), key=lambda one: one.used)
        size = sum(one.bytes for one in loaded)
        for entry in loaded:
            if self._memory and size > self._memory and entry is not newest:
                entry.engine = None
                size -= entry.bytes
                log.info("model unloaded", extra={"about": {"model": entry.name, "MiB": entry.bytes >> 20}})


def _entry(name: str, folder: Path) -> Entry:
    """Check a model folder and read its facts, without loading the model."""
    model = ModelFolder(folder)
    model.load_tokenizer()
    parameters, architecture = model.count_parameters(), model.config.architecture
    found = LANGUAGES.fullmatch(name) if model.task == "translate" else None
    source, target = found.groups() if found and {*found.groups()} <= NAMES.keys() else (None, None)
    created = int(model.file("config.json").stat().st_mtime)
    return Entry(name, folder, model.task, architecture, parameters, source, target, *model.examples(), created)

"""Loading an engine by the task of its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from sightline.backends.base import Backend
from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import converted_folder
from sightline.config import LoadOptions
from sightline.engine.base import Engine
from sightline.engine.chat import Chat
from sightline.engine.reader import Reader
from sightline.engine.translator import Translator
from sightline.engine.writer import Writer
from sightline.errors import InputError, SightlineError
from sightline.model.kernels.compiled import column_major_weights
from sightline.model_folder import SHORTLIST, ModelFolder, Task
from sightline.search.align import Heads
from sightline.search.driver import BATCH_TOKENS
from sightline.text.tokenizer import Tokenizer


def load(path: str | Path | Sequence[str | Path], options: LoadOptions | None = None, **more: Any) -> Engine:
    """Load a model by its folder or by the name of a bundled one: a Translator, Writer, Chat or Reader, by its task.
    Several translators of one vocabulary vote. `more`: the options of `LoadOptions` one by one."""
    options = LoadOptions(**{**dict(options or LoadOptions()), **more})
    folders = [ModelFolder(each) for each in ([path] if isinstance(path, str | Path) else path)]
    if not folders:
        raise InputError.of("path", path, "names no model.")
    device, threads = _device(options.device), torch.get_num_threads()
    if device == "cpu":
        # OpenMP keeps the threads that load a model, and threads no longer spin if there are more than processors.
        torch.set_num_threads(1)
    try:
        return _load(folders, device, options.model_copy(update={"threads": options.threads or threads}))
    finally:
        torch.set_num_threads(threads)


def _load(folders: Sequence[ModelFolder], device: str, options: LoadOptions) -> Engine:
    tokenizers = [folder.load_tokenizer() for folder in folders]
    _check_ensemble(folders, tokenizers)
    models: list[nn.Module] = [folder.load_model(device) for folder in folders]
    if options.precision == "bfloat16":
        if not device.startswith("cuda"):
            raise InputError.of("precision", "bfloat16", f'= "bfloat16" needs a GPU, and the device is {device}.')
        models = [model.to(torch.bfloat16) for model in models]
    if device == "cpu":
        for model in models:
            column_major_weights(model)
    task, tokenizer = folders[0].task, tokenizers[0]
    if task == "translate":
        lengths, heads = [folder.trained_source_length for folder in folders], folders[0].alignment_heads()
        return Translator(
            models,
            tokenizer,
            trained_source_length=min((length for length in lengths if length), default=None),
            heads=None if heads is None else Heads(*heads),
            backends=_backends(folders, models, tokenizer, device, options),
            batch_tokens=options.batch_tokens,
        )
    if task == "chat":
        history_in: Literal["source", "target"]
        history_in = "source" if folders[0].config.architecture == "encoder-decoder" else "target"
        return Chat(models, tokenizer, history_in=history_in, batch_tokens=options.batch_tokens)
    engine: type[Writer | Reader] = Writer if task == "write" else Reader
    return engine(models, tokenizer, batch_tokens=options.batch_tokens)


def load_translator(
    path: str | Path | Sequence[str | Path], options: LoadOptions | None = None, **more: Any
) -> Translator:
    """Load a translator, as `load`; raise an InputError if the model has another task."""
    for each in [path] if isinstance(path, str | Path) else path:
        _check_task(each, "translate")
    engine = load(path, options, **more)
    assert isinstance(engine, Translator)  # noqa: S101
    return engine


def load_writer(path: str | Path, options: LoadOptions | None = None, **more: Any) -> Writer:
    """Load a language model, as `load`; raise an InputError if the model has another task."""
    _check_task(path, "write")
    engine = load(path, options, **more)
    assert isinstance(engine, Writer)  # noqa: S101
    return engine


def _check_task(path: str | Path, task: Task) -> None:
    folder = ModelFolder(path)
    if folder.task != task:
        raise InputError(f"{folder.path}: this model does not {task}. Its task is {folder.task}.", value=path)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises these for a kind that it was built without
        reason = str(error).splitlines()[0]
        raise InputError.of("device", name, f"{name} cannot be used here: {reason}") from None
    return name


def _check_ensemble(folders: Sequence[ModelFolder], tokenizers: Sequence[Tokenizer]) -> None:
    for folder, tokenizer in zip(folders[1:], tokenizers[1:], strict=True):
        if folder.task != "translate" or folders[0].task != "translate":
            raise InputError(f"{folder.path}: only translators can vote. Load one model.", value=folder.path)
        if tokenizer.files != tokenizers[0].files or folder.config.source_end != folders[0].config.source_end:
            raise InputError(
                f"{folder.path} and {folders[0].path} cannot vote: their vocabularies differ.", value=folder.path
            )


def _backends(
    folders: Sequence[ModelFolder], models: Sequence[Any], tokenizer: Tokenizer, device: str, options: LoadOptions
) -> list[Backend]:
    """Return the backends to prefer to torch."""
    only_there = "precision" if options.precision == "int8" else "shortlist" if options.shortlist else None
    if only_there and options.backend == "torch":
        _refuse(options, only_there, "the backend ctranslate2")
    if options.precision == "bfloat16" and (options.backend == "ctranslate2" or options.shortlist):
        _refuse(options, "precision", "the backend torch and no shortlist")
    if len(folders) > 1 and (only_there or options.backend == "ctranslate2"):
        _refuse(options, only_there or "backend", "one model")
    required = options.backend == "ctranslate2" or only_there is not None
    if options.backend == "torch" or (not required and (device != "cpu" or len(folders) > 1)):
        return []
    kind: Literal["float32", "int8"] = "int8" if options.precision == "int8" else "float32"
    try:
        return [
            CTranslate2Backend(
                converted_folder(folders[0], models[0], tokenizer, kind),
                kind,
                threads=options.threads,
                shortlist=folders[0].file(SHORTLIST) if options.shortlist else None,
                batch_tokens=options.batch_tokens or BATCH_TOKENS,
            )
        ]
    except SightlineError:  # it is not installed, cannot do this model, or cannot write its files
        if required:
            raise
        return []


def _refuse(options: LoadOptions, option: str, needed: str) -> NoReturn:
    value = getattr(options, option)
    raise InputError.of(option, value, f"= {value!r} needs {needed}.")

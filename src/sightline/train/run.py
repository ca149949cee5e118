"""Train a model on files: vocabulary, tokenised corpus, batches, model, loop.

Raw text is read twice: to count it, hash it and learn a vocabulary, and to tokenise it. `run.json` in the folder of a
run has the options it was started with, so that the folder is enough to resume it.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import Config, ModelConfig, load
from sightline.data.corpus import Dialogue, HashedFiles, Parallel, Table, Text
from sightline.data.examples import prepare
from sightline.data.feed import Feed
from sightline.data.store import Store, Weighted
from sightline.errors import CheckpointError, InputError
from sightline.files import cache_folder, read_json_object, write_files
from sightline.model.transformer import Model, build
from sightline.model_folder import ModelFolder, load_tokenizer, save_weights
from sightline.options import load_options, option_fields
from sightline.runs import CHECKPOINTS, OPTIONS, Sink, remove_run
from sightline.text.tokenizer import Tokenizer, sample_lines, suggest_vocab_size
from sightline.train.batch_size import find_batch_tokens
from sightline.train.distributed import World
from sightline.train.loop import train
from sightline.train.state import RunState, last_state
from sightline.train.tasks import TASKS, Task, choose_task
from sightline.train.validate import ScoreFunction, Validation
from sightline.train.vocabulary import replace_vocabulary

Log = Callable[[str], None]
MIN_TO_HOLD_OUT = 500
"""Fewest training pairs of which some are held out for validation."""
REPORT_SECONDS = 10
"""Seconds between two reports of tokenising."""
FORMAT = 2
"""Version of run.json. Version 0.1 of Sightline wrote none."""
NEW_RUN = "Start a new run; `init_from` starts it from this model."
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
"""Options of a model that only affect training."""


class TextFiles(NamedTuple):
    """Files of training or validation text: pairs, plain text or dialogues. The weight of a file is how often it is
    used per epoch."""

    parallel: list[tuple[str, str, float]] = []  # noqa: RUF012 - never changed
    pairs: list[tuple[str, float]] = []  # noqa: RUF012
    texts: list[tuple[str, float]] = []  # noqa: RUF012
    dialogues: list[tuple[str, float]] = []  # noqa: RUF012

    @property
    def kind(self) -> str:
        """The kind of the text: pairs, text or dialogue; empty without files. A model has one task, so files must be
        of one kind."""
        kinds = {"pairs": self.parallel or self.pairs, "text": self.texts, "dialogue": self.dialogues}
        first, *others = [kind for kind, files in kinds.items() if files] or [""]
        if others:
            problem = f"cannot be combined with {first}: they train different models. Leave out one of them."
            raise InputError.of(others[0], None, problem)
        return first

    def corpora(self) -> list[Weighted[Any]]:
        """Return the corpora in the files."""
        found: list[Weighted[Any]] = [Weighted(Parallel(Path(s), Path(t)), w) for s, t, w in self.parallel]
        found += [Weighted(Table(Path(path)), weight) for path, weight in self.pairs]
        found += [Weighted(Text(Path(path)), weight) for path, weight in self.texts]
        found += [Weighted(Dialogue(Path(path)), weight) for path, weight in self.dialogues]
        return found


class RunOptions(NamedTuple):
    """Options of a run."""

    out: Path
    train: TextFiles = TextFiles()
    valid: TextFiles = TextFiles()
    preset: str | None = None
    config: str | None = None
    set: Sequence[str] = ()
    init_from: str | None = None
    """A model to start from: its folder, or its name if it is bundled."""
    cache: Path | None = None
    device: str = "auto"
    resume: bool = False


def train_files(
    options: RunOptions,
    sink: Sink,
    log: Log = lambda _: None,
    score: ScoreFunction | None = None,
    task: Task | None = None,
) -> RunState:
    """Train a model on files. `sink` receives the events of training, `log` a line for each stage of preparation.
    `task`: by default the one that suits the text and the model."""
    folder = options.out
    started = last_state(folder / CHECKPOINTS) is not None
    if options.resume:
        options, config = _load_options(options)
    elif started or (folder / "model.safetensors").exists():
        problem = f"already contains a model: {folder}. Continue its run with `resume`, or choose another folder."
        raise InputError.of("out", folder, problem)
    tasks = [task] if task else TASKS[_kind(options)]
    init_from = None if options.init_from is None or started else ModelFolder(options.init_from)
    old = None if init_from is None else (init_from.load_model(), init_from.load_tokenizer())
    corpus = _Corpus(options.train.corpora(), tasks[0], log)
    if not options.resume:
        config = _configure(options, corpus, tasks[0], log, old[0] if old else None)
    world = World(options.device, shard=config.train.shard)
    cache = options.cache or cache_folder()
    if not world.main:
        sink, log = _ignore, _ignore
        config, corpus.files = world.broadcast(None)  # the main process prepares everything first
    task = choose_task(tasks, config)
    made = options.resume or not world.main
    tokenizer = load_tokenizer(folder) if made else _vocabulary(config, corpus, task, old, log)
    source_size = None if tokenizer.joint else tokenizer.source.size
    config = _changed(config, "model", vocab_size=tokenizer.size, source_vocab_size=source_size)
    if config.train.batch_tokens == "auto":  # measured once, so that a resumed run uses the same
        config = _changed(config, "train", batch_tokens=find_batch_tokens(config, world.device))
        log(f"batch size by memory: {config.train.batch_tokens:,} tokens")
    stores = prepare(corpus.parts, tokenizer, cache, task.examples(config), _report_progress(log), corpus.files)
    log(_kept_examples(stores[0]))
    validation, only = _validation(config, options.valid, task, stores[0], tokenizer, cache, score, log)
    text = _fingerprint(stores, validation)
    if world.main:
        if options.resume:
            _check_fingerprint(folder, text)
        else:  # the input is valid
            remove_run(folder)
            _save_options(folder, options, config, tokenizer, text)
        world.broadcast((config, corpus.files))

    torch.manual_seed(config.train.seed)
    model: Model = build(config.model)
    if old is not None:
        model.load_state_dict(replace_vocabulary(old[0], old[1], tokenizer).state_dict())
    padded = config.train.rows == "padded" or (config.train.rows == "auto" and world.device.type != "cuda")
    feed = Feed(
        stores,
        batch_tokens=int(config.train.batch_tokens),
        seed=config.train.seed,
        rows="padded" if padded else "shared",
        make=task.batches(tokenizer),
        only=only,
    )
    about: dict[str, Any] = {"task": task.name, "trained_source_length": task.source_length(stores[0], tokenizer)}
    with closing(world):
        return train(
            model,
            feed,
            config,
            folder=folder,
            sink=sink,
            save_model=lambda weights, to: save_weights(weights, config.model, to, tokenizer, **about),
            validation=validation,
            world=world,
            resume=options.resume,
            objective=task.objective,
        )


def _kind(options: RunOptions) -> str:
    """Return the kind of the training text."""
    kind, validated = options.train.kind, options.valid.kind
    if not kind:
        problem = "is missing: no training text. Name files by `source` and `target`, `pairs`, `text` or `dialogue`."
        raise InputError.of("pairs", None, problem)
    if validated not in {kind, ""}:
        problem = f"must be of the same kind as the training text, which is {kind}, got {validated}."
        raise InputError.of("valid", validated, problem)
    return kind


class _Corpus:
    """The training text. It is read once, at the latest when its count, its lines or its hashes are needed."""

    def __init__(self, parts: Sequence[Weighted[Any]], task: Task, log: Log) -> None:
        self.parts, self.task, self.log, self.files = parts, task, log, HashedFiles()
        self._read: tuple[int, list[str]] | None = None

    @property
    def count(self) -> int:
        """Number of examples."""
        return self._once()[0]

    @property
    def lines(self) -> list[str]:
        """The text, or a random sample of it: enough to learn a vocabulary."""
        return self._once()[1]

    def _once(self) -> tuple[int, list[str]]:
        if self._read is None:
            count, progress = 0, _report_progress(self.log, "read")

            def texts() -> Iterator[str]:
                nonlocal count
                for corpus, _ in self.parts:
                    for example in self.task.texts(corpus, self.files):
                        count += 1
                        yield from example
                        progress(count)

            lines = sample_lines(texts())
            self._read = count, lines
        return self._read


def _changed(config: Config, group: Literal["model", "train"], **values: Any) -> Config:
    """Return the configuration with other values in one group."""
    return config.model_copy(update={group: getattr(config, group).model_copy(update=values)})


def _configure(options: RunOptions, corpus: _Corpus, task: Task, log: Log, old: Model | None) -> Config:
    preset = options.preset
    if preset is None and options.config is None and old is None:
        preset = task.preset(corpus.count)
        log(f"{corpus.count:,} examples of training text: using preset {preset}")
    config = load(preset, options.config, options.set)
    return config if old is None else config.model_copy(update={"model": _model_options(old.config, options)})


def _model_options(model: ModelConfig, options: RunOptions) -> ModelConfig:
    """Return the options of a model that is trained further. Only dropout may change; a preset sets the recipe
    alone."""
    known = {"model": model.model_dump()}
    wanted = load_options(Config, known, file=options.config, sets=options.set).model
    for name, _ in option_fields(ModelConfig):
        value = attrgetter(name)(wanted)
        if name not in DROPOUTS and value != attrgetter(name)(model):
            problem = "cannot be changed in a model that is trained further (`init_from`). Leave it out."
            raise InputError.of(f"model.{name}", value, problem)
    return wanted


def _vocabulary(
    config: Config, corpus: _Corpus, task: Task, old: tuple[Model, Tokenizer] | None, log: Log
) -> Tokenizer:
    if config.data.tokenizer is not None:
        tokenizer = Tokenizer.load(config.data.tokenizer)
        log(f"vocabulary: {tokenizer.size:,} entries of {config.data.tokenizer}")
        return tokenizer
    if old is not None and config.data.vocab_size is None:
        log(f"vocabulary: {old[1].size:,} entries of the model")
        return old[1]
    size = config.data.vocab_size or suggest_vocab_size(corpus.count)
    tokenizer = Tokenizer.train(corpus.lines, size, task.special)
    log(f"vocabulary: {tokenizer.size:,} entries, learned from the text")
    return tokenizer


def _report_progress(log: Log, done: str = "tokenised") -> Callable[[int], None]:
    """Return a function that logs the number of examples every few seconds."""
    last = time.monotonic()

    def progress(count: int) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            log(f"{done}: {count:,} so far")

    return progress


def _kept_examples(store: Store) -> str:
    counts = store.counts
    reasons = {"empty": counts.empty, "too long": counts.too_long, "of unequal lengths": counts.out_of_ratio}
    left_out = ", ".join(f"{count:,} {name}" for name, count in reasons.items() if count)
    return f"training examples: {counts.kept:,}" + (f"; left out: {left_out}" if left_out else "")


def _validation(
    config: Config,
    inputs: TextFiles,
    task: Task,
    train: Store,
    tokenizer: Tokenizer,
    cache: Path,
    score: ScoreFunction | None,
    log: Log,
) -> tuple[Validation | None, NDArray[np.int64] | None]:
    """Return the validation and the training examples to use (None: all). Without validation text, some of the training
    text is held out for it."""
    make = partial(
        Validation,
        tokenizer=tokenizer,
        batch_tokens=int(config.train.batch_tokens),
        make=task.batches(tokenizer),
        objective=task.objective,
        answer=task.answer,
        score=score,
        beams=config.train.beams,
    )
    corpora = inputs.corpora()
    if not corpora:
        if len(train) < MIN_TO_HOLD_OUT:
            log("no validation text, and too little training text to hold some out: the last state becomes the model")
            return None, None
        held = sorted(train.sample[: len(train) // 50])
        log(f"no validation text: {len(held):,} training examples are held out")
        indices = np.array([i for i, _ in held])
        rest = np.setdiff1d(np.arange(len(train)), indices)
        return make(train, pairs=[texts for _, texts in held], only=indices), rest
    files = HashedFiles()
    pairs = [texts for corpus, _ in corpora for texts in task.texts(corpus, files)] if task.answer else []
    (store,) = prepare(corpora, tokenizer, cache, (task.valid_examples or task.examples)(config), files=files)
    return make(store, pairs=pairs), None


def _fingerprint(stores: Sequence[Store], validation: Validation | None) -> list[list[Any]]:
    """Identify training and validation text by its ids: files may move before the run is resumed."""
    validated = [] if validation is None else [validation.store]
    return [[store.digest, *(part.weight for part in store.parts)] for store in (*stores, *validated)]


def _check_fingerprint(folder: Path, text: list[list[Any]]) -> None:
    known = read_json_object(folder / OPTIONS).get("text", text)
    if known != text:
        problem = f"the training data has changed since this run started, so it cannot be resumed. {NEW_RUN}"
        raise InputError(f"{folder}: {problem}", value=folder)


def _save_options(
    folder: Path, options: RunOptions, config: Config, tokenizer: Tokenizer, text: list[list[Any]]
) -> None:
    about: dict[str, Any] = {
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "train": options.train._asdict(),
        "valid": options.valid._asdict(),
        "init_from": options.init_from,
        "text": text,
    }
    # In this order: if run.json exists, so do the other files.
    files = {**tokenizer.files, OPTIONS: json.dumps(about, indent=2).encode() + b"\n"}
    write_files(folder, files)


def _load_options(options: RunOptions) -> tuple[RunOptions, Config]:
    """Return the options of a run to resume. New ones may only name moved files, the device and the cache."""
    path = options.out / OPTIONS
    if not path.exists():
        raise CheckpointError.of("resume", True, f"needs a run, and {options.out} has none. Leave it out to start one.")
    about = read_json_object(path)
    if about.get("format") != FORMAT:
        problem = f"this run is of another version of Sightline and cannot be resumed. {NEW_RUN}"
        raise CheckpointError(f"{path}: {problem}", value=about.get("format"))
    try:
        config = Config(**about["config"])
        texts = {name: TextFiles(**about[name]) for name in ("train", "valid")}
    except (KeyError, TypeError):
        raise CheckpointError(f"{path}: not the options of a run.", value=path) from None
    for name in ("preset", "config", "set", "init_from"):
        if value := getattr(options, name):
            problem = "cannot be set for a resumed run, which keeps its configuration. Leave it out."
            raise InputError.of(name, value, problem)
    kept: dict[str, Any] = {name: files for name, files in texts.items() if not getattr(options, name).corpora()}
    return options._replace(**kept, init_from=about["init_from"]), config


def _ignore(_: Any) -> None:
    """Discard an event or a line."""

"""Train a model on files: vocabulary, tokenised corpus, batches, model, loop.

`run.json` in the folder of a run has the options it was started with, so that the folder is enough to resume it.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import Config, ModelConfig, load
from sightline.data.corpus import Corpus, Dialogue, Parallel, Table, Text, lines, read_dialogues, read_pairs
from sightline.data.feed import Feed
from sightline.data.store import Cleaning, Store, Weighted, prepare, prepare_dialogues, prepare_texts
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.files import cache_folder, read_json_object, write_files
from sightline.model.transformer import Model, build
from sightline.model_folder import ModelFolder, load_tokenizer
from sightline.options import load_options, option_fields
from sightline.text.dialogue import ROLE_TOKENS
from sightline.text.split import split
from sightline.text.tokenizer import Tokenizer, suggest_vocab_size
from sightline.train.batch_size import find_batch_tokens
from sightline.train.distributed import World
from sightline.train.events import Sink
from sightline.train.loop import RunState, remove_run, train
from sightline.train.state import last_state
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

    def corpora(self) -> list[Weighted[Any]]:
        """Return the corpora in the files, which must be of one kind: a model has one task."""
        kinds = {"pairs": self.parallel or self.pairs, "text": self.texts, "dialogue": self.dialogues}
        first, *others = [kind for kind, files in kinds.items() if files] or [""]
        if others:
            problem = f"cannot be combined with {first}: they train different models. Leave out one of them."
            raise InputError.of(others[0], None, problem)
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
    options: RunOptions, sink: Sink, log: Log = lambda _: None, score: ScoreFunction | None = None
) -> RunState:
    """Train a model on files. `sink` receives the events of training, `log` a line for each stage of preparation."""
    folder = options.out
    if options.resume:
        options, config = _load_options(options)
    elif last_state(folder / "checkpoints") is not None or (folder / "model.safetensors").exists():
        problem = f"already contains a model: {folder}. Continue its run with `resume`, or choose another folder."
        raise InputError.of("out", folder, problem)
    corpora = options.train.corpora()
    if not corpora:
        problem = "is missing: no training text. Name files by `source` and `target`, `pairs`, `text` or `dialogue`."
        raise InputError.of("pairs", None, problem)
    has_checkpoint = last_state(folder / "checkpoints") is not None
    init_from = None if options.init_from is None or has_checkpoint else ModelFolder(options.init_from)
    old = None if init_from is None else (init_from.load_model(), init_from.load_tokenizer())
    if not options.resume:
        config = _configure(options, corpora, log, old[0] if old else None)
    world = World(options.device, shard=config.train.shard)
    cache = options.cache or cache_folder()
    if not world.main:
        sink, log = _ignore, _ignore
        config = world.broadcast(None)  # the main process prepares everything first
    tokenizer = load_tokenizer(folder) if options.resume or not world.main else _vocabulary(config, corpora, old, log)
    source_size = None if tokenizer.joint else tokenizer.source.size
    config = _changed(config, "model", vocab_size=tokenizer.size, source_vocab_size=source_size)
    if config.train.batch_tokens == "auto":  # measured once, so that a resumed run uses the same
        config = _changed(config, "train", batch_tokens=find_batch_tokens(config, world.device))
        log(f"batch size by memory: {config.train.batch_tokens:,} tokens")
    stores = _stores(config, corpora, tokenizer, cache, log)
    validation, only = _validation(config, options.valid, stores[0], tokenizer, cache, score, log)
    text = _fingerprint(stores, validation)
    if world.main:
        if options.resume:
            _check_fingerprint(folder, text)
        else:  # the input is valid
            remove_run(folder)
            _save_options(folder, options, config, tokenizer, text)
        world.broadcast(config)

    torch.manual_seed(config.train.seed)
    model: Model = build(config.model)
    if old is not None:
        model.load_state_dict(replace_vocabulary(old[0], old[1], tokenizer).state_dict())
    rows = config.train.rows
    if rows == "auto":
        rows = "shared" if world.device.type == "cuda" else "padded"
    batch_tokens, masked = int(config.train.batch_tokens), _masked_vocabulary(config)
    feed = Feed(stores, batch_tokens=batch_tokens, seed=config.train.seed, rows=rows, masked=masked, only=only)
    with closing(world):
        return train(
            model,
            feed,
            config,
            folder=folder,
            sink=sink,
            tokenizer=tokenizer,
            trained_source_length=_trained_source_length(stores[0], tokenizer),
            validation=validation,
            world=world,
            resume=options.resume,
        )


def _changed(config: Config, group: Literal["model", "train"], **values: Any) -> Config:
    """Return the configuration with other values in one group."""
    return config.model_copy(update={group: getattr(config, group).model_copy(update=values)})


def choose_preset(corpora: Sequence[Weighted[Any]], pairs: int) -> str:
    """Return the preset for a corpus by its kind and size."""
    if isinstance(corpora[0].corpus, Text | Dialogue):
        return "gpt-tiny" if pairs < 1_000_000 else "gpt-small"
    for limit, name in ((60_000, "tiny"), (600_000, "small"), (20_000_000, "base")):
        if pairs < limit:
            return name
    return "big"


def _configure(options: RunOptions, corpora: Sequence[Weighted[Any]], log: Log, old: Model | None) -> Config:
    preset = options.preset
    if preset is None and options.config is None and old is None:
        count = sum(1 for corpus, _ in corpora for _ in _sentences(corpus))
        preset = choose_preset(corpora, count)
        log(f"{count:,} lines of training text: using preset {preset}")
    config = load(preset, options.config, options.set)
    if old is not None:
        config = config.model_copy(update={"model": _model_options(old.config, options)})
    check_options(config, pairs=isinstance(corpora[0].corpus, Parallel | Table))
    return config


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


def check_options(config: Config, *, pairs: bool) -> None:
    """Raise if a model with these options cannot be trained on pairs, or on other text."""
    found, needed = config.model.architecture, "encoder-decoder" if pairs else "decoder-only or encoder-only"
    if found not in needed:
        problem = f"is {found}; this text needs {needed}. Choose another preset."
        raise InputError.of("model.architecture", found, problem)
    if not config.model.source_end:
        problem = "must be true for training: training sources end in the end token."
        raise ConfigError.of("model.source_end", False, problem)


def _sentences(corpus: Corpus | Text | Dialogue) -> Iterator[tuple[str, ...]]:
    """Return the text of a corpus, to count it and to learn a vocabulary."""
    if isinstance(corpus, Text):
        return ((line,) for line in lines(corpus.path))
    if isinstance(corpus, Dialogue):
        return (tuple(turns) for turns in read_dialogues(corpus))
    return read_pairs(corpus)


def _vocabulary(
    config: Config, corpora: Sequence[Weighted[Any]], old: tuple[Model, Tokenizer] | None, log: Log
) -> Tokenizer:
    if config.data.tokenizer is not None:
        tokenizer = Tokenizer.load(config.data.tokenizer)
        log(f"vocabulary: {tokenizer.size:,} entries of {config.data.tokenizer}")
        return tokenizer
    if old is not None and config.data.vocab_size is None:
        log(f"vocabulary: {old[1].size:,} entries of the model")
        return old[1]
    size = config.data.vocab_size or suggest_vocab_size(sum(1 for c, _ in corpora for _ in _sentences(c)))
    text = chain.from_iterable(sentence for corpus, _ in corpora for sentence in _sentences(corpus))
    special = [*ROLE_TOKENS.values()] if isinstance(corpora[0].corpus, Dialogue) else []
    tokenizer = Tokenizer.train(text, size, special)
    log(f"vocabulary: {tokenizer.size:,} entries, learned from the text")
    return tokenizer


def _stores(
    config: Config, corpora: Sequence[Weighted[Any]], tokenizer: Tokenizer, cache: Path, log: Log
) -> list[Store]:
    data = config.data
    if isinstance(corpora[0].corpus, Text | Dialogue):
        context = min(data.max_length, config.model.positions.max_length) - 1
        make = prepare_texts if isinstance(corpora[0].corpus, Text) else prepare_dialogues
        stores = [make(corpora, tokenizer, cache, context, _report_progress(log))]
        log(f"text: {len(stores[0]):,} chunks of up to {context} tokens")
        return stores
    length = min(data.max_length, config.model.positions.max_length - 1)
    cleaning = Cleaning(length, data.max_ratio)
    stores = []
    for reading in range(data.readings if data.bpe_dropout else 1):
        progress = _report_progress(log)
        stores.append(prepare(corpora, tokenizer, cache, cleaning, progress, dropout=data.bpe_dropout, reading=reading))
        if reading == 0:
            log(_kept_pairs(stores[0]))
    return stores


def _report_progress(log: Log) -> Callable[[int], None]:
    """Return a function that logs the number of tokenised lines every few seconds."""
    last = time.monotonic()

    def progress(count: int) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            log(f"tokenised: {count:,} so far")

    return progress


def _kept_pairs(store: Store) -> str:
    counts = store.counts
    reasons = {"empty": counts.empty, "too long": counts.too_long, "of unequal lengths": counts.out_of_ratio}
    left_out = ", ".join(f"{count:,} {name}" for name, count in reasons.items() if count)
    return f"pairs: {counts.kept:,} of {counts.read:,} kept" + (f"; left out: {left_out}" if left_out else "")


def _validation(
    config: Config,
    inputs: TextFiles,
    train: Store,
    tokenizer: Tokenizer,
    cache: Path,
    score: ScoreFunction | None,
    log: Log,
) -> tuple[Validation | None, NDArray[np.int64] | None]:
    """Return the validation and the training pairs to use (None: all). Without validation text, some of the training
    text is held out for it."""
    make = partial(
        Validation,
        tokenizer=tokenizer,
        batch_tokens=int(config.train.batch_tokens),
        masked=_masked_vocabulary(config),
        score=score,
        beams=config.train.beam,
    )
    corpora = inputs.corpora()
    if not corpora:
        if len(train) < MIN_TO_HOLD_OUT:
            log("no validation text, and too little training text to hold some out: the last state becomes the model")
            return None, None
        held, rest = _hold_out(train, config.train.seed)
        log(f"no validation text: {len(held):,} training examples are held out")
        source, target = train.source, train.target
        pairs = [(tokenizer.source.decode(source[i]), tokenizer.decode(target[i])) for i in held] if source else []
        return make(train, pairs=pairs, only=held), rest
    if isinstance(corpora[0].corpus, Text | Dialogue):
        return make(_stores(config, corpora, tokenizer, cache, _ignore)[0]), None
    # Validation uses all pairs that the model can read.
    store = prepare(corpora, tokenizer, cache, Cleaning(config.model.positions.max_length - 1, 1e9))
    return make(store, pairs=[pair for corpus, _ in corpora for pair in read_pairs(corpus)]), None


def _masked_vocabulary(config: Config) -> int | None:
    """Return the vocabulary size if the task is to predict masked words."""
    return config.model.vocab_size if config.model.architecture == "encoder-only" else None


def _hold_out(store: Store, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a random 2 % of the indices, up to 1,000, and the others."""
    order = np.random.default_rng([seed, len(store)]).permutation(len(store))
    count = min(1000, len(store) // 50)
    return np.sort(order[:count]), np.sort(order[count:])


def _fingerprint(stores: Sequence[Store], validation: Validation | None) -> list[list[Any]]:
    """Identify training and validation text by content: files may move before the run is resumed."""
    validated = [] if validation is None else [validation.store]
    return [[store.folder.name, *(part.weight for part in store.parts)] for store in (*stores, *validated)]


def _check_fingerprint(folder: Path, text: list[list[Any]]) -> None:
    known = read_json_object(folder / "run.json").get("text", text)
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
    files = {**tokenizer.files, "run.json": json.dumps(about, indent=2).encode() + b"\n"}
    write_files(folder, files)


def _trained_source_length(store: Store, tokenizer: Tokenizer) -> int | None:
    """Return the length of long training sources in tokens, or 1 if sources are single sentences. Translation splits
    longer texts into sentences."""
    if store.source is None:
        return None
    sample = range(0, len(store), max(1, len(store) // 1000))
    texts = [tokenizer.source.decode(store.source[i]) for i in sample]
    several = [len(split(text, lambda texts: [len(text) for text in texts], 10**9, 1)) > 1 for text in texts]
    return int(np.quantile(store.source.lengths, 0.99)) if np.mean(several) > 0.02 else 1


def _load_options(options: RunOptions) -> tuple[RunOptions, Config]:
    """Return the options of a run to resume. New ones may only name moved files, the device and the cache."""
    path = options.out / "run.json"
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

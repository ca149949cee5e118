"""From files to a trained model: vocabulary, tokenised corpus, batches, model, loop.

The folder of a run has `run.json`, what it was started with, so that it can be resumed by its name alone.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import Config, ModelConfig, load
from sightline.data.corpus import Corpus, Dialogue, Parallel, Table, Text, lines, read_dialogues, read_pairs
from sightline.data.feed import Feed
from sightline.data.store import Cleaning, Store, Weighted, prepare, prepare_dialogues, prepare_texts
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.files import cache_folder, write_files
from sightline.model.transformer import Model, build
from sightline.model_folder import ModelFolder, load_tokenizer
from sightline.text.split import split
from sightline.text.tokenizer import Tokenizer, suggest_vocab_size
from sightline.train.batch_size import find_batch_tokens
from sightline.train.distributed import World
from sightline.train.events import Sink, Warned
from sightline.train.loop import RunState, remove_run, train
from sightline.train.state import last_state
from sightline.train.validate import ScoreFunction, Validation
from sightline.train.vocabulary import replace_vocabulary

__all__ = ["RunOptions", "TextFiles", "check_options", "choose_preset", "train_files"]

Log = Callable[[str], None]
MIN_TO_HOLD_OUT = 500
"""Pairs from which on some are held out to test on."""
REPORT_SECONDS = 10
"""Seconds without a word."""
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
"""Options of a model that say how it is trained, and not what it is."""


class TextFiles(NamedTuple):
    """The text of one purpose, training or validation: pairs, or plain text, or dialogues. Each file has a weight: how
    often it is seen in an epoch."""

    parallel: list[tuple[str, str, float]] = []  # noqa: RUF012 - never changed
    pairs: list[tuple[str, float]] = []  # noqa: RUF012
    texts: list[tuple[str, float]] = []  # noqa: RUF012
    dialogues: list[tuple[str, float]] = []  # noqa: RUF012

    def corpora(self) -> list[Weighted[Any]]:
        """What is to be read. One kind at a time: a model has one task."""
        kinds = [bool(self.parallel or self.pairs), bool(self.texts), bool(self.dialogues)]
        if sum(kinds) > 1:
            raise InputError("pairs, texts and dialogues train different models; give one kind of them.")
        found: list[Weighted[Any]] = [Weighted(Parallel(Path(s), Path(t)), w) for s, t, w in self.parallel]
        found += [Weighted(Table(Path(path)), weight) for path, weight in self.pairs]
        found += [Weighted(Text(Path(path)), weight) for path, weight in self.texts]
        found += [Weighted(Dialogue(Path(path)), weight) for path, weight in self.dialogues]
        return found


class RunOptions(NamedTuple):
    """All that a run is asked for."""

    out: Path
    train: TextFiles = TextFiles()
    valid: TextFiles = TextFiles()
    preset: str | None = None
    config: str | None = None
    set: Sequence[str] = ()
    init_from: str | None = None
    """A model to go on from."""
    cache: Path | None = None
    device: str = "auto"
    resume: bool = False


def train_files(
    options: RunOptions, sink: Sink, log: Log = lambda _: None, score: ScoreFunction | None = None
) -> RunState:
    """Train a model on files. `log` hears of each stage in words, `tell` of the training itself."""
    folder = options.out
    if options.resume:
        options, config = _load_options(options)
    elif last_state(folder / "checkpoints") is not None or (folder / "model.safetensors").exists():
        raise InputError(f"{folder}: there is a model here already; add --resume to go on, or choose another --out.")
    corpora = options.train.corpora()
    if not corpora:
        raise InputError(
            "there is nothing to train on; name files by --source and --target, --pairs, --text or --dialogue."
        )
    begun = last_state(folder / "checkpoints") is not None
    start = None if options.init_from is None or begun else ModelFolder(options.init_from)
    old = None if start is None else (start.load_model(), start.load_tokenizer())
    if not options.resume:
        config = _configure(options, corpora, log, old[0] if old else None)
    world = World(options.device, shard=config.train.shard)
    cache = options.cache or cache_folder()
    if not world.main:
        sink, log = _ignore, _ignore
        config = world.broadcast(None)  # which first prepares everything
    tokenizer = load_tokenizer(folder) if options.resume or not world.main else _vocabulary(config, corpora, old, log)
    config = _with_vocabulary_size(config, tokenizer)
    stores = _stores(config, corpora, tokenizer, cache, log)
    validation, only = _validation(config, options.valid, stores[0], tokenizer, cache, score, log)
    text = _fingerprint(stores, validation)
    if world.main:
        if options.resume:
            _check_fingerprint(folder, text)
        else:  # all that can be wrong with the input has been found by now
            config = _fix_batch_tokens(config, world, log)
            remove_run(folder)
            _save_options(folder, options, config, tokenizer, text)
        world.broadcast(config)
        if not begun:
            _warn_of_leaks(stores[0], sink)

    torch.manual_seed(config.train.seed)
    model: Model = build(config.model)
    if old is not None:
        model.load_state_dict(replace_vocabulary(old[0], old[1], tokenizer).state_dict())
    budget = config.train.batch_tokens
    assert budget != "auto"  # noqa: S101 - it was measured
    rows = config.train.rows
    if rows == "auto":
        rows = "shared" if world.device.type == "cuda" else "padded"
    masked = config.model.vocab_size if config.model.architecture == "encoder-only" else None
    feed = Feed(stores, budget=budget, seed=config.train.seed, rows=rows, masked=masked, only=only)
    try:
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
    finally:
        world.close()


def _fix_batch_tokens(config: Config, world: World, log: Log) -> Config:
    """A budget that is found is kept: another one would change the course of the run."""
    if config.train.batch_tokens != "auto":
        return config
    budget = find_batch_tokens(config, world.device)
    log(f"memory holds {budget:,} tokens a batch")
    return config.model_copy(update={"train": config.train.model_copy(update={"batch_tokens": budget})})


def choose_preset(corpora: Sequence[Weighted[Any]], pairs: int) -> str:
    """A preset that fits the corpus."""
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
        log(f"{count:,} lines of training text: preset {preset} (choose another with --preset)")
    config = load(preset, options.config, options.set)
    if old is not None:
        config = config.model_copy(update={"model": _model_options(old.config, options)})
    check_options(config, pairs=isinstance(corpora[0].corpus, Parallel | Table))
    return config


def _model_options(model: ModelConfig, options: RunOptions) -> ModelConfig:
    """A model that is trained further stays what it is, and of a preset only the recipe counts. How much is dropped may
    be set anew."""
    asked = load(None, options.config, options.set).model.model_dump(exclude_unset=True)
    dropped = {name: asked.pop(name) for name in DROPOUTS if name in asked}
    if other := next(_differing(asked, model.model_dump(), "model"), None):
        raise InputError(f"--from goes on with a model as it is, so {other} cannot be set; leave it out.")
    return model.model_copy(update=dropped)


def _differing(asked: dict[str, Any], known: dict[str, Any], path: str) -> Iterator[str]:
    """Options that are not what they are known to be."""
    for name, value in asked.items():
        if isinstance(value, dict) and isinstance(known[name], dict):
            yield from _differing(value, known[name], f"{path}.{name}")
        elif value != known[name]:
            yield f"{path}.{name}"


def check_options(config: Config, *, pairs: bool) -> None:
    """Whether there can be a run by these options, on pairs or on other text."""
    wanted = "encoder-decoder" if pairs else "decoder-only or encoder-only"
    if config.model.architecture not in wanted:
        raise InputError(
            f"this text needs a model that is {wanted}, and the configuration asks for one that is "
            f"{config.model.architecture}; choose another preset."
        )
    if not config.model.source_end:
        raise ConfigError("model.source_end = false cannot be trained: sources here always end in the end token.")


def _sentences(corpus: Corpus | Text | Dialogue) -> Iterator[tuple[str, ...]]:
    """The text of a corpus, as far as counting and learning a vocabulary need it."""
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
        log(f"vocabulary: {old[1].size:,} entries, as the model has it")
        return old[1]
    size = config.data.vocab_size or suggest_vocab_size(sum(1 for c, _ in corpora for _ in _sentences(c)))
    text = chain.from_iterable(sentence for corpus, _ in corpora for sentence in _sentences(corpus))
    tokenizer = Tokenizer.train(text, size)
    log(f"vocabulary: {tokenizer.size:,} entries, learned from the text")
    return tokenizer


def _with_vocabulary_size(config: Config, tokenizer: Tokenizer) -> Config:
    """The model's vocabulary is the tokenizer's."""
    source = None if tokenizer.joint else tokenizer.source.size
    model = config.model.model_copy(update={"vocab_size": tokenizer.size, "source_vocab_size": source})
    return config.model_copy(update={"model": model})


def _stores(
    config: Config, corpora: Sequence[Weighted[Any]], tokenizer: Tokenizer, cache: Path, log: Log
) -> list[Store]:
    data = config.data
    if isinstance(corpora[0].corpus, Text | Dialogue):
        context = min(data.max_length, config.model.positions.max_length) - 1
        make = prepare_texts if isinstance(corpora[0].corpus, Text) else prepare_dialogues
        stores = [make(corpora, tokenizer, cache, context, _report_progress(log))]
        log(f"text: {len(stores[0]):,} pieces of at most {context} tokens")
        return stores
    length = min(data.max_length, config.model.positions.max_length - 1)
    cleaning = Cleaning(length, data.max_ratio)
    readings = range(data.readings if data.bpe_dropout else 1)
    stores = []
    for reading in readings:
        tell = _report_progress(log)
        stores.append(prepare(corpora, tokenizer, cache, cleaning, tell, dropout=data.bpe_dropout, reading=reading))
        if reading == 0:
            log(_kept_pairs(stores[0]))
    return stores


def _report_progress(log: Log) -> Callable[[int], None]:
    """Tell how much is tokenised, where that takes long."""
    told = time.monotonic()

    def progress(count: int) -> None:
        nonlocal told
        if time.monotonic() - told > REPORT_SECONDS:
            told = time.monotonic()
            log(f"tokenised: {count:,} so far")

    return progress


def _kept_pairs(store: Store) -> str:
    counts = store.counts
    why = {"empty": counts.empty, "too long": counts.too_long, "of unequal lengths": counts.out_of_ratio}
    left_out = ", ".join(f"{count:,} {name}" for name, count in why.items() if count)
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
    """The text to test on, and which part of the training text is left to train on (None: all of it). Where no text to
    test on is named, some of the training text is held out for it."""
    budget = config.train.batch_tokens if isinstance(config.train.batch_tokens, int) else 4096
    masked = config.model.vocab_size if config.model.architecture == "encoder-only" else None
    corpora = inputs.corpora()
    if not corpora:
        if len(train) < MIN_TO_HOLD_OUT:
            log("no validation text, and too little to hold some out: the last state of the run will be its model")
            return None, None
        held, rest = _hold_out(train, config.train.seed)
        log(f"no validation text: {len(held):,} of the training text are held out to test on")
        pairs = (
            [(tokenizer.source.decode(train.source[i]), tokenizer.decode(train.target[i])) for i in held]
            if train.source
            else []
        )
        options: dict[str, Any] = {"score": score, "pairs": pairs, "beams": config.train.beam, "only": held}
        return Validation(train, tokenizer, batch_tokens=budget, masked=masked, **options), rest
    if isinstance(corpora[0].corpus, Text | Dialogue):
        store = _stores(config, corpora, tokenizer, cache, _ignore)[0]
        return Validation(store, tokenizer, batch_tokens=budget, masked=masked), None
    # No pair is left out of a test but what the model cannot read at all.
    store = prepare(corpora, tokenizer, cache, Cleaning(config.model.positions.max_length - 1, 1e9))
    pairs = [pair for corpus, _ in corpora for pair in read_pairs(corpus)]
    return Validation(store, tokenizer, batch_tokens=budget, score=score, pairs=pairs, beams=config.train.beam), None


def _hold_out(store: Store, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One in fifty, a thousand at most, by chance; and the others."""
    order = np.random.default_rng([seed, len(store)]).permutation(len(store))
    count = min(1000, len(store) // 50)
    return np.sort(order[:count]), np.sort(order[count:])


def _warn_of_leaks(store: Store, sink: Sink) -> None:
    """A source that has the answer in it teaches nothing but to copy."""
    if store.source is None:
        return
    leaks = looked = 0
    for i in islice(range(0, len(store), max(1, len(store) // 1000)), 1000):
        source, target = store.source[i].astype("<u4").tobytes(), store.target[i].astype("<u4").tobytes()
        if len(target) >= 5 * 4:
            looked += 1
            leaks += target in source
    if looked >= 20 and leaks > 0.2 * looked:
        sink(
            Warned(
                0,
                f"in {leaks} of {looked} pairs looked at, the source has the whole target in it; the model will learn "
                "to copy. Are the columns what they should be?",
            )
        )


def _fingerprint(stores: Sequence[Store], validation: Validation | None) -> list[list[Any]]:
    """What a run is trained and tested on, by its content: the files may have been moved when it is resumed."""
    tested = [] if validation is None else [validation.store]
    return [[store.folder.name, *(part.weight for part in store.parts)] for store in (*stores, *tested)]


def _check_fingerprint(folder: Path, text: list[list[Any]]) -> None:
    known = json.loads((folder / "run.json").read_text("utf-8")).get("text", text)
    if known != text:
        raise InputError(
            f"{folder}: its text is no longer what this run began with, so it cannot go on; begin another one, with "
            f"--from {folder} if it is to learn on."
        )


def _save_options(
    folder: Path, options: RunOptions, config: Config, tokenizer: Tokenizer, text: list[list[Any]]
) -> None:
    about: dict[str, Any] = {
        "config": config.model_dump(mode="json"),
        "train": options.train._asdict(),
        "valid": options.valid._asdict(),
        "init_from": options.init_from,
        "text": text,
    }
    # In this order: where there is a run.json, there is all that it needs.
    files = {**tokenizer.files, "run.json": json.dumps(about, indent=2).encode() + b"\n"}
    write_files(folder, files)


def _trained_source_length(store: Store, tokenizer: Tokenizer) -> int | None:
    """Return the tokens of a long source, or 1 if sources are single sentences. Longer texts are translated sentence by
    sentence."""
    if store.source is None:
        return None
    some = range(0, len(store), max(1, len(store) // 1000))
    texts = [tokenizer.source.decode(store.source[i]) for i in some]
    several = [len(split(text, lambda texts: [len(text) for text in texts], 10**9, 1)) > 1 for text in texts]
    return int(np.quantile(store.source.lengths, 0.99)) if np.mean(several) > 0.02 else 1


def _load_options(options: RunOptions) -> tuple[RunOptions, Config]:
    """A run that is resumed goes on as it was started; only what does not change its course may be set anew."""
    path = options.out / "run.json"
    try:
        about = json.loads(path.read_text("utf-8"))
        config = Config(**about["config"])
        inputs = {name: TextFiles(**about[name]) for name in ("train", "valid")}
    except OSError:
        raise CheckpointError(
            f"{options.out}: there is no run here to resume; leave out --resume to begin one."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path}: this is not what a run was started with.") from None
    if options.preset or options.config or options.set or options.init_from:
        raise InputError(
            "a run that is resumed keeps its configuration; leave out --preset, --config, --set and --from."
        )
    training = options.train if options.train.corpora() else inputs["train"]
    testing = options.valid if options.valid.corpora() else inputs["valid"]
    return options._replace(train=training, valid=testing, init_from=about["init_from"]), config


def _ignore(_: Any) -> None:
    """Said to nobody."""

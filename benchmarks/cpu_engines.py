"""Translation on a processor: CTranslate2 called directly, in float32 and in int8, and Sightline's engine, which calls
it; the same weights, the same sentences, one run.

    python benchmarks/cpu_engines.py MODEL --pairs TEST.tsv --learn TRAIN.tsv

MODEL is a Hugging Face folder of a Marian translator (for instance Helsinki-NLP/opus-mt-en-fr), TEST pairs of source
and reference, TRAIN pairs that the shortlist is learnt from (one or more files, without any sentence of TEST). Every
system reads and returns raw text, in batches of 1 and of 32 sentences, with one beam and with four. Each has its own
process; they take turns on each batch. CTranslate2 is called with both thread settings, and ours is compared with the
faster one in the same run. The results are medians of `--runs` runs.
Needs the development dependencies (transformers, ctranslate2). The result goes to benchmarks/results/.
"""

import argparse
import functools
import importlib
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import alone, keep, side_by_side, where
from sacrebleu.metrics.bleu import BLEU

from sightline.backends.ctranslate2_format import save_shortlist
from sightline.config import SearchConfig, ShortlistOptions
from sightline.data.corpus import Table, read_pairs
from sightline.engine import load_translator
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.model_folder import save_model
from sightline.text.shortlist import learn
from sightline.text.tokenizer import Tokenizer

System = Callable[..., list[str]]
PRECISIONS = ("float32", "int8")
CONVERTED = {"float32": "ctranslate2", "int8": "ctranslate2-int8"}
"""The folder of a model that our engine has converted for CTranslate2."""
TOGETHER = "threads together"


def imported(marian: Path, folder: Path) -> Tokenizer:
    """Import a Marian translator."""
    ours, tokenizer = read_hugging_face(marian)
    save_model(ours, folder, tokenizer, trained_source_length=250)  # no text is split, as in CTranslate2
    return tokenizer


def tokenised(files: Sequence[Path], tokenizer: Tokenizer) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield pairs as ids."""
    pairs = itertools.chain.from_iterable(read_pairs(Table(path)) for path in files)
    while some := list(itertools.islice(pairs, 10_000)):
        sources, targets = zip(*some, strict=True)
        yield from zip(tokenizer.source.encode(sources), tokenizer.encode(targets), strict=True)


def direct(folder: Path, precision: str, tokenizer: Tokenizer, *, together: bool) -> System:
    """Return CTranslate2 called directly: tokens in, tokens out, long inputs in batches by length. `together`: all
    threads compute one batch; otherwise each thread computes a part of the sentences."""
    library: Any = importlib.import_module("ctranslate2")
    threads = torch.get_num_threads()
    parts = 1 if together else threads
    translator = library.Translator(
        str(folder), compute_type=precision, inter_threads=parts, intra_threads=threads // parts
    )
    ids = {piece: i for i, piece in enumerate(tokenizer.all_pieces())}

    def system(texts: Sequence[str], beams: int) -> list[str]:
        sources = [[*tokenizer.source.pieces(source), "</s>"] for source in tokenizer.source.encode(texts)]
        most, of = (2048, "tokens") if together else (-(-len(texts) // parts), "examples")
        results = translator.translate_batch(sources, beam_size=beams, max_batch_size=most, batch_type=of)
        return [tokenizer.decode([ids[piece] for piece in result.hypotheses[0]]) for result in results]

    return system


def ours(folder: Path, **options: Any) -> System:
    """Return the engine with its default options."""
    engine = load_translator(folder, device="cpu", **options)

    def system(texts: Sequence[str], beams: int) -> list[str]:
        plan = engine.plan(texts, SearchConfig(beams=beams, patience=1), log_probs=False)
        return [found.text for found in engine.run(plan)]

    return system


def against(runs: Sequence[Mapping[str, tuple[float, Any]]], name: str, precision: str) -> float:
    """Return the speed of a system against the fastest direct call in a precision: the median over the runs."""
    ratios = []
    for run in runs:
        direct = [seconds for other, (seconds, _) in run.items() if other.startswith(f"CTranslate2 {precision}")]
        ratios.append(min(direct) / run[name][0])
    return statistics.median(ratios)


def _by(system: System, beams: int, texts: Sequence[str]) -> list[str]:
    return system(texts, beams)


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--learn", type=Path, nargs="+", required=True)
    parser.add_argument("--often", type=int, help="tokens that may always come; two fifths of all if left out")
    parser.add_argument("--likely", type=int, default=ShortlistOptions.model_fields["likely"].default)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--runs", type=int, default=5, help="the median counts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    texts, references = zip(*itertools.islice(read_pairs(Table(options.pairs)), options.sentences), strict=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        tokenizer = imported(options.model, folder)
        pairs = tokenised(options.learn, tokenizer)
        began = time.perf_counter()
        shortlist = learn(pairs, tokenizer, often=options.often, likely=options.likely)
        save_shortlist(shortlist, tokenizer, folder)
        learnt = time.perf_counter() - began
        named: dict[str, System] = {
            f"Sightline {precision}{', shortlist' if shortlist else ''}": alone(
                ours, folder, precision=precision, shortlist=shortlist
            )
            for shortlist, precision in itertools.product((False, True), PRECISIONS)
        }
        named |= {
            f"CTranslate2 {precision}, {how}": alone(
                direct, folder / CONVERTED[precision], precision, tokenizer, together=how == TOGETHER
            )
            for how, precision in itertools.product((TOGETHER, "a thread a part"), PRECISIONS)
        }
    rows = []
    for beams, size in itertools.product(options.beams, options.batches):
        ready = {name: functools.partial(_by, system, beams) for name, system in named.items()}
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        runs = [side_by_side(ready, batches, 1) for _ in range(options.runs)]
        for name in named:
            precision = name.split()[1].rstrip(",")
            seconds = statistics.median(run[name][0] for run in runs)
            mine, same = runs[0][name][1], runs[0][f"CTranslate2 {precision}, {TOGETHER}"][1]
            row = {
                "system": name,
                "beams": beams,
                "batch": size,
                "sentences/s": round(len(texts) / seconds, 2),
                "tokens/s": round(sum(len(ids) + 1 for ids in tokenizer.encode(mine)) / seconds, 1),
                "speed against the fastest CTranslate2": round(against(runs, name, ""), 2),
                "against the faster one in this precision": round(against(runs, name, precision), 2),
                "same answers as CTranslate2 in this precision": sum(a == b for a, b in zip(mine, same, strict=True)),
                "bleu": round(BLEU().corpus_score(mine, [references]).score, 2),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    settings = {
        "model": options.model.name,
        "sentences": len(texts),
        "runs": options.runs,
        "of": options.pairs.name,
        "shortlist": {
            "learnt from": [path.name for path in options.learn],
            "likely": options.likely,
            "always": len(shortlist.always),
            "coverage": round(shortlist.coverage, 4),
            "seconds": round(learnt, 1),
        },
    }
    versions = where("transformers", "ctranslate2")
    print(f"kept in {keep('decode-cpu-engines', {'where': versions, 'settings': settings, 'results': rows})}")


if __name__ == "__main__":
    main()

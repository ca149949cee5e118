"""Translation by Sightline, Hugging Face `generate` and CTranslate2: the same weights, the same sentences, one run.

    python benchmarks/decode.py MODEL --pairs PAIRS.tsv

MODEL is a Hugging Face folder of a Marian translator (for instance Helsinki-NLP/opus-mt-en-fr), or one that `sightline
train` wrote; PAIRS a TSV of source and reference. Sentences are translated in batches, with one beam and with four; the
script counts answers that are the same, token for token. The batches of Sightline have the size that its users get.
Needs the development dependencies (transformers, ctranslate2). The result goes to benchmarks/results/.
"""

import argparse
import functools
import itertools
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import keep, search_sources, side_by_side, where
from sacrebleu.metrics.bleu import BLEU
from transformers import MarianMTModel

from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import convert
from sightline.config import SearchConfig
from sightline.data.corpus import Table, read_pairs
from sightline.engine.translator import translation_request
from sightline.interop.hugging_face import to_hugging_face
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.model.kernels.compiled import column_major_weights
from sightline.model_folder import load_model, load_tokenizer
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer

Answers = list[list[int]]
System = Callable[..., Answers]


class Translator(NamedTuple):
    """One model as ours and as Hugging Face's, and its vocabulary."""

    ours: Any
    theirs: Any
    own: list[int]
    """Their id for each of ours."""
    words: Tokenizer


def opened(folder: Path) -> Translator:
    """Open a Hugging Face folder of a Marian translator, or a folder that `sightline train` wrote."""
    if (folder / "tokenizer.model").exists():
        mine: Any = load_model(folder)
        words = load_tokenizer(folder)
        return Translator(mine, to_hugging_face(mine), list(range(words.size)), words)
    ours, words = read_hugging_face(folder)
    theirs: Any = MarianMTModel.from_pretrained(folder)
    start = theirs.config.decoder_start_token_id
    return Translator(ours, theirs.eval(), [start if i < 0 else i for i in words.own_ids], words)


def systems(model: Translator, device: str, dtype: torch.dtype) -> dict[str, System]:
    """Return the systems: functions from sources to answers, all in our ids."""
    ours, theirs, own = model.ours.to(dtype).eval(), model.theirs.to(device, dtype), model.own
    pad, end = own[PAD], own[END]
    ids = {old: new for new, old in reversed(list(enumerate(own)))}
    if device == "cpu":
        with tempfile.TemporaryDirectory() as beside:
            convert(ours, model.words, Path(beside) / "model")
            fast = CTranslate2Backend(Path(beside) / "model", threads=torch.get_num_threads(), batch_tokens=10**6)
        column_major_weights(ours)
    ours = ours.to(device)

    @torch.no_grad()
    def hugging_face(sources: Sequence[list[int]], beams: int) -> Answers:
        width = max(map(len, sources)) + 1
        rows = [[*(own[i] for i in source), end, *[pad] * (width - len(source) - 1)] for source in sources]
        source = torch.tensor(rows, device=device)
        found = theirs.generate(
            source,
            attention_mask=source != pad,
            num_beams=beams,
            do_sample=False,
            early_stopping=beams > 1,
            length_penalty=1.0,
            max_new_tokens=2 * width + 10,
            bad_words_ids=[[i] for i in {own[PAD], own[START], own[UNKNOWN]}],
        )
        return [[ids[i] for i in row if i not in (pad, end, own[START])] for row in found.tolist()]

    def sightline(sources: Sequence[list[int]], beams: int) -> Answers:
        return [best.ids for best, *_ in search_sources(ours, sources, SearchConfig(beams=beams, patience=1))]

    def ctranslate2(sources: Sequence[list[int]], beams: int) -> Answers:
        config = SearchConfig(beams=beams, patience=1)
        requests = [translation_request(ids, config, ours.config) for ids in sources]
        return [best.ids for best, *_ in fast.search(requests, config, log_probs=False)]

    named: dict[str, System] = {"Sightline": sightline, "Hugging Face": hugging_face}
    return named | ({"CTranslate2": ctranslate2} if device == "cpu" else {})


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", help="sentences at a time")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--few", type=int, default=10**9, help="most sentences to translate one by one")
    parser.add_argument("--rounds", type=int, default=2, help="the best time of each batch counts")
    parser.add_argument("--name", help="of the result, if it is not that of the device")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="bfloat16 on a GPU")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = options.precision or ("bfloat16" if device == "cuda" else "float32")
    batches = options.batches or ([1, 64, 512] if device == "cuda" else [1, 32])
    model = opened(options.model)
    named = systems(model, device, getattr(torch, precision))
    pairs = list(itertools.islice(read_pairs(Table(options.pairs)), options.sentences))
    given = model.words.source.encode([source for source, _ in pairs])
    rows = []
    for beams, size in itertools.product(options.beams, batches):
        sources = given[: options.few if size == 1 else None]
        references = [reference for _, reference in pairs[: len(sources)]]
        ready: dict[str, Callable[[Sequence[list[int]]], Answers]] = {
            name: functools.partial(system, beams=beams) for name, system in named.items()
        }
        found = side_by_side(ready, [sources[i : i + size] for i in range(0, len(sources), size)], options.rounds)
        fastest, same = found["Sightline"]
        for name, (seconds, mine) in found.items():
            row = {
                "system": name,
                "beams": beams,
                "batch": size,
                "sentences": len(mine),
                "tokens/s": round(sum(len(ids) + 1 for ids in mine) / seconds, 1),
                "speed of Sightline against it": round(seconds / fastest, 2),
                "same answers as Sightline": sum(a == b for a, b in zip(mine, same, strict=True)),
                "bleu": round(BLEU().corpus_score([model.words.decode(ids) for ids in mine], [references]).score, 2),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    settings = {"model": options.model.name, "precision": precision, "of": options.pairs.name}
    settings |= {"config": model.ours.config.model_dump(mode="json")}
    versions = where("transformers", *(["ctranslate2"] if device == "cpu" else []))
    result = {"where": versions, "settings": settings, "results": rows}
    print(f"kept in {keep(f'decode-{options.name or device}', result)}")


if __name__ == "__main__":
    main()

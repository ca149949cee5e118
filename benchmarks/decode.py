"""Translation by Sightline, Hugging Face `generate` and CTranslate2: the same weights, the same sentences, one run.

    python benchmarks/decode.py MODEL --pairs PAIRS.tsv

MODEL is a Hugging Face folder of a Marian translator (for instance Helsinki-NLP/opus-mt-en-fr), PAIRS a TSV of source
and reference. Sentences are given in batches of 1 and of 32, by one beam and by four; how often the answers are the
same, to the token, is counted. Needs the development dependencies (transformers, ctranslate2). The result goes to
benchmarks/results/.
"""

import argparse
import itertools
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import keep, where
from sacrebleu.metrics.bleu import BLEU
from transformers import MarianMTModel, MarianTokenizer

from sightline.config import SearchConfig
from sightline.data.corpus import Table, read_pairs
from sightline.interop.ctranslate2 import CTranslate2Search, convert
from sightline.interop.hugging_face import from_hugging_face, renumbered
from sightline.model.kernels import for_few_rows
from sightline.search.find import find
from sightline.text.tokenizer import PAD, START, UNKNOWN

Answers = list[list[int]]
System = Callable[[Sequence[list[int]], int], Answers]


class Numbers:
    """As much of a tokenizer as a conversion needs: a name for every id."""

    def __init__(self, size: int) -> None:
        self.size, self.model = size, b""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return ["<pad>", "<s>", "</s>", "<unk>", *map(str, ids[4:])]


def systems(folder: Path, device: str) -> tuple[dict[str, System], Any, dict[int, int]]:
    """Each from batches of sources to answers, all in our ids; the tokenizer; and our id for each of theirs."""
    theirs: Any = MarianMTModel.from_pretrained(folder)
    theirs.eval()
    pad, end, unknown = theirs.config.pad_token_id, theirs.config.eos_token_id, 1
    own = [pad, pad, end, unknown, *(i for i in range(theirs.config.vocab_size) if i not in (pad, end, unknown))]
    ids: dict[int, int] = {old: new for new, old in reversed(list(enumerate(own)))}
    imported: Any = from_hugging_face(theirs)
    ours: Any = renumbered(imported, own)
    theirs.to(device)
    with torch.no_grad():
        ours.classifier.bias[[PAD, START, UNKNOWN]] = -1e4  # as its own search forbids them
    with tempfile.TemporaryDirectory() as beside:
        convert(ours, Numbers(len(own)), Path(beside) / "model")  # type: ignore[arg-type]
        fast = CTranslate2Search(Path(beside) / "model", threads=torch.get_num_threads())
    ours = ours.to(device)
    if device == "cpu":
        for_few_rows(ours)

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
            bad_words_ids=[[pad], [unknown]],
        )
        return [[ids[i] for i in row if i not in (pad, end)] for row in found.tolist()]

    def sightline(sources: Sequence[list[int]], beams: int) -> Answers:
        return [best.ids for best, *_ in find(ours, sources, SearchConfig(beams=beams), budget=10**6)]

    def ctranslate2(sources: Sequence[list[int]], beams: int) -> Answers:
        config = SearchConfig(beams=beams)
        return [best.ids for best, *_ in fast.find(sources, config, log_probs=False, budget=10**6)]

    named: dict[str, System] = {"Sightline": sightline, "Hugging Face": hugging_face}
    return (
        named | ({"CTranslate2": ctranslate2} if device == "cpu" else {}),
        MarianTokenizer.from_pretrained(folder),
        ids,
    )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=2, help="the best counts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    named, tokenizer, ids = systems(options.model, device)
    pairs = list(itertools.islice(read_pairs(Table(options.pairs)), options.sentences))
    sources = [[ids[i] for i in row[:-1]] for row in tokenizer([source for source, _ in pairs])["input_ids"]]
    theirs = {new: old for old, new in ids.items()}
    rows = []
    for beams, size in itertools.product(options.beams, options.batches):
        best: dict[str, float] = {}
        answers: dict[str, Answers] = {}
        for _, (name, system) in itertools.product(range(options.rounds), named.items()):
            began = time.perf_counter()
            answers[name] = [
                answer for i in range(0, len(sources), size) for answer in system(sources[i : i + size], beams)
            ]
            best[name] = min(best.get(name, 1e9), time.perf_counter() - began)
        for name, seconds in best.items():
            mine = answers[name]
            texts = [tokenizer.decode([theirs[i] for i in ids], skip_special_tokens=True) for ids in mine]
            row = {
                "system": name,
                "beams": beams,
                "batch": size,
                "tokens/s": round(sum(len(ids) + 1 for ids in mine) / seconds, 1),
                "speed of Sightline against it": round(seconds / best["Sightline"], 2),
                "same answers as Sightline": sum(a == b for a, b in zip(mine, answers["Sightline"], strict=True)),
                "bleu": round(BLEU().corpus_score(texts, [[reference for _, reference in pairs]]).score, 2),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    settings = {"model": options.model.name, "sentences": len(pairs), "of": options.pairs.name}
    versions = where("transformers", *(["ctranslate2"] if device == "cpu" else []))
    print(f"kept in {keep(f'decode-{device}', {'where': versions, 'settings': settings, 'results': rows})}")


if __name__ == "__main__":
    main()

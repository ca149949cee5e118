"""The same sentence gives the same answer, whatever its neighbours: the same sentences one by one, in batches of
several sizes, shuffled.

    python benchmarks/neighbours.py MODEL --pairs PAIRS.tsv

MODEL is a Hugging Face folder of a Marian translator (for instance Helsinki-NLP/opus-mt-en-fr), one that `sightline
train` wrote, or a shipped model; PAIRS a TSV whose first column is translated. Counts the answers that are not those
to the sentence alone, to the token, and how far log-probabilities are apart. Needs the development dependencies. The
result goes to benchmarks/results/.
"""

import argparse
import itertools
import logging
import random
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from common import keep, search_sources, where
from decode import opened

from sightline.config import SearchConfig
from sightline.data.corpus import Table, read_pairs
from sightline.model.kernels.compiled import column_major_weights
from sightline.model_folder import ModelFolder, load_model, load_tokenizer


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda name: ModelFolder(name).path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batches", type=int, nargs="+", default=[7, 64])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if (options.model / "tokenizer.model").exists():
        loaded: Any = load_model(options.model)
        encode: Any = load_tokenizer(options.model).source.encode
    else:
        loaded, _, _, words = opened(options.model)
        encode = words.source.encode
    ours = loaded.to(device).eval()
    if device == "cpu":
        column_major_weights(ours)
    pairs = itertools.islice(read_pairs(Table(options.pairs)), options.sentences)
    sources = encode([source for source, _ in pairs])
    rows = []
    for beams in options.beams:
        config = SearchConfig(beams=beams)
        alone = [search_sources(ours, [source], config)[0][0] for source in sources]
        for size in options.batches:
            began = time.perf_counter()
            order = random.Random(size).sample(range(len(sources)), len(sources))
            found: dict[int, Any] = {}
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                answers = search_sources(ours, [sources[i] for i in batch], config)
                found |= dict(zip(batch, (best for best, *_ in answers), strict=True))
            apart = [
                abs(sum(found[i].log_probs) - sum(one.log_probs))
                for i, one in enumerate(alone)
                if found[i].ids == one.ids
            ]
            row = {
                "beams": beams,
                "batch": size,
                "sentences": len(sources),
                "other answers than alone": sum(found[i].ids != one.ids for i, one in enumerate(alone)),
                "log-probabilities apart at most": float(f"{max(apart):.1e}"),
                "seconds": round(time.perf_counter() - began, 1),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    settings = {"model": options.model.name, "of": options.pairs.name, "precision": "float32"}
    print(f"kept in {keep(f'neighbours-{device}', {'where': where(), 'settings': settings, 'results': rows})}")


if __name__ == "__main__":
    main()

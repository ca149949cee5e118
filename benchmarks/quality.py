"""From raw text to a score: train by the real command line, choose on dev, translate the test set, and time all of it.

    python benchmarks/quality.py multi30k --data DATA     # En→De, at most 3 M parameters
    python benchmarks/quality.py tatoeba --data DATA      # En→De, at most 15 M parameters

DATA has `multi30k/en-de.{train,val,test2016}.tsv.gz` (Multi30k, task 1, raw: https://github.com/multi30k/dataset) and
`tatoeba/en-de.{train.tsv.xz,dev.tsv.gz,test.tsv.gz}` (training pairs by way of manythings.org/anki; dev and test
sampled from the Tatoeba Challenge): raw text, English, a tab, German. Needs the development dependencies (sacremoses).
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import keep, search_sources, where

SETS: dict[str, dict[str, Any]] = {
    "multi30k": {
        "train": "multi30k/en-de.train.tsv.gz",
        "dev": "multi30k/en-de.val.tsv.gz",
        "test": "multi30k/en-de.test2016.tsv.gz",
        "preset": "tiny",
        "limit": 3_000_000,
        "search": {"beams": 5},
        "sets": [
            "data.vocab_size=8000",
            "model.encoder.d_ff=512",
            "model.decoder.d_ff=512",
            "model.dropout=0.15",
            "train.batch_tokens=8192",
            "train.learning_rate=0.007",
            "train.r_drop=4",
            "train.steps=3000",
            "train.validate_every=3000",
        ],
    },
    "tatoeba": {
        "train": "tatoeba/en-de.train.tsv.xz",
        "dev": "tatoeba/en-de.dev.tsv.gz",
        "test": "tatoeba/en-de.test.tsv.gz",
        "preset": "small",
        "limit": 15_000_000,
        "search": {"beams": 5},
        "sets": ["train.r_drop=3", "train.epochs=50"],
    },
}


def moses(texts: list[str], language: str) -> list[str]:
    """Tokenise with Moses and lower-case, as published scores of Multi30k are computed."""
    from sacremoses import MosesTokenizer  # type: ignore[import-untyped]  # noqa: PLC0415 - needed by one of the sets

    tokenizer = MosesTokenizer(language)
    return [tokenizer.tokenize(text.lower(), return_str=True, escape=False) for text in texts]


def main() -> None:
    """Train, translate, score, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the corpora")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the run goes")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="an option of the training")
    parser.add_argument("--preset")
    parser.add_argument("--name", help="of the result; nothing is kept without one")
    parser.add_argument("--on", nargs="+", default=["test", "dev"], choices=("dev", "test"), help="choose on dev alone")
    options = parser.parse_args()
    chosen = SETS[options.set]
    folder = options.out / (options.name or options.set)
    shutil.rmtree(folder, ignore_errors=True)

    began = time.perf_counter()
    command = [sys.executable, "-m", "sightline.cli.main", "train", "--out", str(folder), "--plain"]
    command += ["--pairs", str(options.data / chosen["train"]), "--valid", str(options.data / chosen["dev"])]
    command += ["--preset", options.preset or chosen["preset"], "--cache", str(folder / "cache")]
    for assignment in [*chosen["sets"], *options.sets]:
        command += ["--set", assignment]
    with subprocess.Popen(command) as training:  # noqa: S603
        import sightline.engine  # noqa: F401, PLC0415 - while it trains: scoring will need all of this
    if training.returncode:
        sys.exit(training.returncode)
    trained = time.perf_counter() - began
    result: dict[str, Any] = {"parameters": parameters(folder)}
    for part in options.on:
        result[part] = score(folder, options.data / chosen[part], chosen["search"])
        # From raw text to the first score; the time of the second score does not count.
        result.setdefault("seconds", {"training": round(trained, 1), "in all": round(time.perf_counter() - began, 1)})
    if result["parameters"] > chosen["limit"]:
        sys.exit(f"{result['parameters']:,} parameters are more than the {chosen['limit']:,} of this set")
    print(json.dumps(result, indent=2))
    if options.name:
        config = json.loads((folder / "run.json").read_text())["config"]
        settings = {"set": options.set, "search": chosen["search"], "config": config}
        kept = {"where": where("sacrebleu", "sacremoses"), "settings": settings, "results": result}
        print(f"kept in {keep(f'quality-{options.name}', kept)}")


def parameters(folder: Path) -> int:
    """Return the number of parameters of the trained model."""
    from sightline.model_folder import load_model  # noqa: PLC0415

    return sum(p.numel() for p in load_model(folder).parameters())


def score(folder: Path, test: Path, search: dict[str, Any]) -> dict[str, Any]:
    """Translate a test set with a trained model."""
    import torch  # noqa: PLC0415
    from sacrebleu.metrics import BLEU  # type: ignore[attr-defined]  # noqa: PLC0415

    from sightline.config import SearchConfig  # noqa: PLC0415
    from sightline.data.corpus import Table, read_pairs  # noqa: PLC0415
    from sightline.evaluate.scores import corpus_scores  # noqa: PLC0415
    from sightline.model_folder import load_model, load_tokenizer  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = load_model(folder, device)
    tokenizer = load_tokenizer(folder)
    sources, references = (list(side) for side in zip(*read_pairs(Table(test)), strict=True))
    found = search_sources(model, tokenizer.encode(sources), SearchConfig(**search))
    texts = [tokenizer.decode(best.ids) for (best,) in found]
    (folder / f"{test.name.split('.')[1]}.translated").write_text("\n".join(texts) + "\n")
    tokenised = BLEU(lowercase=True, tokenize="none", force=True)
    anchor = tokenised.corpus_score(moses(texts, "de"), [moses(references, "de")]).score
    return {
        "sentences": len(sources),
        **{
            name: {"score": round(s.value, 2), "signature": s.signature}
            for name, s in corpus_scores(texts, references).items()
        },
        "bleu, Moses-tokenised, lower-cased": {"score": round(anchor, 2), "signature": str(tokenised.get_signature())},
    }


if __name__ == "__main__":
    main()

"""One model in four programs: the answers of Sightline's own search in torch, CTranslate2, onnxruntime and Hugging
Face's generate.

    python benchmarks/exports.py MODEL --pairs TEST.tsv

MODEL is a folder that `sightline train` or `sightline import` wrote, or a shipped model; TEST pairs of source and
reference. The model is exported three times, and each program gets raw text. If an answer differs from that of torch,
the result has the distance between both, as torch computes it: with one beam the log-probabilities of the two tokens
at which the answers differ first, with several beams the scores of both. Needs the development dependencies. The result
goes to benchmarks/results/.
"""

import argparse
import itertools
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import keep, search_sources, where
from sacrebleu.metrics.bleu import BLEU

from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.config import SearchConfig
from sightline.data.corpus import Table, read_pairs
from sightline.engine.translator import translation_request
from sightline.files import optional_import
from sightline.interop.export import Kind, export_model
from sightline.interop.hugging_face_files import quiet
from sightline.interop.onnx import Difference, OnnxModel
from sightline.model_folder import ModelFolder, load_model, load_tokenizer
from sightline.search.score import score

System = Callable[[Sequence[str], int], list[str]]
TIE = 1e-4


def hugging_face(folder: Path) -> System:
    """Return Hugging Face as its users call it, with our rule for the end of a search."""
    with quiet():
        model = optional_import("transformers", extra="export").AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        words = optional_import("transformers", extra="export").AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def system(texts: Sequence[str], beams: int) -> list[str]:
        given = words(list(texts), return_tensors="pt", padding=True)
        longest = 2 * given["input_ids"].shape[1] + 10
        options = {"num_beams": beams, "max_new_tokens": longest, "length_penalty": 1.0, "early_stopping": beams > 1}
        found = model.generate(**given, **options)
        return [str(text) for text in words.batch_decode(found, skip_special_tokens=True)]

    return system


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda name: ModelFolder(name).path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--name", default="exports", help="of the result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    model: Any = load_model(options.model)
    words = load_tokenizer(options.model)
    texts, references = zip(*itertools.islice(read_pairs(Table(options.pairs)), options.sentences), strict=True)

    def by(search: Callable[[list[list[int]], SearchConfig], list[list[Any]]]) -> System:
        def system(some: Sequence[str], beams: int) -> list[str]:
            found = search(words.source.encode(some), SearchConfig(beams=beams, patience=1))
            return [words.decode(best.ids) for best, *_ in found]

        return system

    def ctranslate2(backend: CTranslate2Backend) -> Callable[[list[list[int]], SearchConfig], list[list[Any]]]:
        return lambda sources, config: backend.search(
            [translation_request(ids, config, model.config) for ids in sources], config
        )

    rows = []
    with tempfile.TemporaryDirectory() as beside:
        compared: dict[str, Difference | None] = {}
        folders: dict[Kind, Path] = {}
        kinds: list[Kind] = ["huggingface", "ctranslate2", "onnx"]
        for kind in kinds:
            folders[kind] = Path(beside) / kind
            compared[kind] = export_model(model, words, folders[kind], kind)
            print(f"{kind}: {compared[kind]}", flush=True)
        export_model(model, words, Path(beside) / "int8", "ctranslate2", precision="int8")
        systems = {
            "torch": by(partial(search_sources, model)),
            "ctranslate2": by(ctranslate2(CTranslate2Backend(folders["ctranslate2"]))),
            "onnx": by(partial(search_sources, OnnxModel(folders["onnx"]))),
            "huggingface": hugging_face(folders["huggingface"]),
            "ctranslate2 int8": by(ctranslate2(CTranslate2Backend(Path(beside) / "int8", "int8"))),
        }
        for beams in (1, 4):
            answers: dict[str, list[str]] = {}
            for name, system in systems.items():
                answers[name] = [
                    answer
                    for i in range(0, len(texts), options.batch)
                    for answer in system(texts[i : i + options.batch], beams)
                ]
                different = [i for i, (a, b) in enumerate(zip(answers[name], answers["torch"], strict=True)) if a != b]
                apart = [gap(model, words, texts[i], answers[name][i], answers["torch"][i], beams) for i in different]
                row = {
                    "program": name,
                    "beams": beams,
                    "sentences": len(texts),
                    "differ from torch": len(different),
                    "of these, chosen by less than 1e-4": sum(one < TIE for one in apart),
                    "chosen by": [round(one, 6) for one in apart] if "int8" not in name else "not looked at",
                    "bleu": round(BLEU().corpus_score(answers[name], [references]).score, 2),
                }
                rows.append(row)
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    about = {kind: found._asdict() for kind, found in compared.items() if found is not None}
    settings = {"model": options.model.name, "of": options.pairs.name, "largest difference found by export": about}
    versions = where("transformers", "ctranslate2", "onnxruntime")
    print(f"kept in {keep(options.name, {'where': versions, 'settings': settings, 'results': rows})}")


def gap(model: Any, words: Any, source: str, one: str, other: str, beams: int) -> float:
    """Return the distance between the two candidates of the search: two tokens or, with several beams, two answers."""
    both = words.encode([one, other])
    (ids,), options = words.source.encode([source]), SearchConfig()
    scores = score([model], [translation_request(ids, options, model.config)] * 2, both)  # of each token and the end
    if beams == 1:
        parted = next(i for i, (a, b) in enumerate(itertools.zip_longest(*both)) if a != b)
        return abs(scores[0][parted] - scores[1][parted])
    means = [sum(log_probs) / len(log_probs) for log_probs in scores]
    return abs(means[0] - means[1])


if __name__ == "__main__":
    main()

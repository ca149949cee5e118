"""Quality of the bundled translator and of its teacher, and their speed on a CPU with the same engine.

    python benchmarks/student.py en-fr TEACHER --data DATA

TEACHER is OPUS-MT English-French (`sightline import Helsinki-NLP/opus-mt-en-fr --out TEACHER`). DATA has
`tatoeba/en-fr.test.tsv.gz` (sampled from the Tatoeba Challenge) and `multi30k/en-fr.test2016.tsv.gz` (Multi30k, task 1,
raw): English, a tab, French; and `tatoeba/en-fr.train.tsv.xz`, from which a shortlist for the student is learnt.
Quality is that of beam 4 in float32. For speed both translate the same sentences, 32 at a time and all together, and
take turns; for each batch the best time counts. Each has one thread: more threads of one would still spin while the
other works. Words are words of the source.
"""

import argparse
import functools
import itertools
import json
from pathlib import Path
from typing import Any

from common import keep, side_by_side, where
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from sightline.backends.ctranslate2_format import Precision
from sightline.bulk.pairs import learn_shortlist
from sightline.data.corpus import Table, read_pairs
from sightline.engine import Translator, load_translator

PAIRS = "tatoeba/en-fr.train.tsv.xz"
SETS = {"Tatoeba": "tatoeba/en-fr.test.tsv.gz", "Multi30k": "multi30k/en-fr.test2016.tsv.gz"}
EVERYDAY = ["Hi, how are you?", "I am a student.", "Where is the nearest station?"]
RIDDLE = [f"The animal didn't cross the street because it was too {word}." for word in ("tired", "wide")]
SEVERAL = 32


def quality(systems: dict[str, str], data: Path, most: int | None) -> list[dict[str, Any]]:
    """Return BLEU and chrF of each system, with their signatures."""
    rows = []
    for name, model in systems.items():
        engine = load_translator(model, device="cpu", precision="float32")
        for called, file in SETS.items():
            sources, references = zip(*list(read_pairs(Table(data / file)))[:most], strict=True)
            answers = [found.text for found in engine.translate(sources)]
            row: dict[str, Any] = {"system": name, "test set": called, "sentences": len(sources)}
            for metric in (BLEU(), CHRF()):
                score = metric.corpus_score(answers, [references])
                row[score.name] = f"{score.score:.2f} ({metric.get_signature()})"
            rows.append(row)
            print(row, flush=True)
    return rows


def translate(engine: Translator, beams: int, texts: list[str]) -> list[str]:
    """Translate; this is the call that is timed."""
    return [found.text for found in engine.translate(texts, beams=beams)]


def speed(systems: dict[str, str], texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Return the words per second on one core of each system, in both precisions."""
    words, rows = sum(len(text.split()) for text in texts), []
    kinds: list[tuple[Precision, bool]] = [("float32", False), ("int8", False), ("int8", True)]
    for precision, mapped in kinds:
        engines = {
            name: load_translator(
                model,
                device="cpu",
                backend="ctranslate2",
                precision=precision,
                shortlist=mapped and name == "student",
                threads=1,
            )
            for name, model in systems.items()
        }
        for beams, size in itertools.product((1, 4), (SEVERAL, len(texts))):
            batches = [texts[i : i + size] for i in range(0, len(texts), size)]
            said = {name: functools.partial(translate, engine, beams) for name, engine in engines.items()}
            found = side_by_side(said, batches, rounds)
            for name, (seconds, _) in found.items():
                if mapped and name == "teacher":
                    continue  # it has no shortlist; it was timed for the comparison
                row: dict[str, Any] = {
                    "system": name,
                    "precision": f"{precision}, with a shortlist" if mapped else precision,
                    "beams": beams,
                    "sentences at a time": size,
                    "words/s on a core": round(words / seconds),
                    "times the teacher": round(found["teacher"][0] / seconds, 2),
                }
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    """Measure and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("student")
    parser.add_argument("teacher")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sentences", type=int, help="of each test set; all, if left out")
    parser.add_argument("--timed", type=int, default=384, help="sentences whose translation is timed")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    systems = {"student": options.student, "teacher": options.teacher}
    learn_shortlist(options.student, [Table(options.data / PAIRS)])
    texts = [source for source, _ in read_pairs(Table(options.data / SETS["Tatoeba"]))][: options.timed]
    timed = speed(systems, texts, options.rounds)
    engine = load_translator(options.student, device="cpu")
    said = {text: engine.translate([text])[0].text for text in (*EVERYDAY, *RIDDLE)}
    here = where("ctranslate2", "sacrebleu")
    result = {
        "quality": {"where": here, "results": quality(systems, options.data, options.sentences)},
        "speed": {"where": here, "settings": {"sentences": len(texts)}, "results": timed},
        "said": {"where": here, "results": said},
    }
    print(json.dumps(result, indent=2, ensure_ascii=False))
    print(keep("student", result))


if __name__ == "__main__":
    main()

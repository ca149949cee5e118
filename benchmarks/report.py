"""Write the page of results: `python benchmarks/report.py` writes RESULTS.md from results/*.json.

It measures nothing. Each table has the command that measured it, the machine, the versions and the commit, and whether
its goal was met. A goal is a number that the project set before the measurement.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Goal(NamedTuple):
    """A number of a result, and its least acceptable value."""

    what: str
    least: float
    found: Callable[[Any], float]


class Entry(NamedTuple):
    """One file of results."""

    title: str
    file: str
    command: str
    goals: list[Goal] = []  # noqa: RUF012 - never changed
    part: str = ""
    """Where the file has several."""


def _speed(size: str) -> Callable[[Any], float]:
    return lambda found: float(found["results"]["Sightline"][f"speed against {size}"])


def _rows(system: str, column: str, **where: Any) -> Callable[[Any], float]:
    """The number of a row: of this system, and with these settings."""

    def found(results: Any) -> float:
        (row,) = (
            row for row in results["results"] if row.get("system", system) == system and where.items() <= row.items()
        )
        return float(row[column])

    return found


def _each(against: str, system: str, column: str, least: float) -> list[Goal]:
    cells = [(beams, batch) for beams in (1, 4) for batch in (1, 32)]
    return [
        Goal(f"{against}, {beams} beams, batches of {batch}", least, _rows(system, column, beams=beams, batch=batch))
        for beams, batch in cells
    ]


def _on_gpu(cells: list[tuple[int, int]]) -> list[Goal]:
    column = "speed of Sightline against it"
    return [
        Goal(
            f"× Hugging Face, {beams} beams, batches of {batch}",
            5.0,
            _rows("Hugging Face", column, beams=beams, batch=batch),
        )
        for beams, batch in cells
    ]


def _first_number(system: str, column: str, test_set: str) -> Callable[[Any], float]:
    """A score, without its signature."""

    def found(results: Any) -> float:
        (row,) = (row for row in results["results"] if (row["system"], row["test set"]) == (system, test_set))
        return float(row[column].split()[0])

    return found


def _student(column: str, precision: str, beams: int, at_a_time: int) -> Callable[[Any], float]:
    return _rows("student", column, precision=precision, beams=beams, **{"sentences at a time": at_a_time})


STUDENT = "python benchmarks/student.py en-fr TEACHER --data DATA"
HUGGING_FACE, TORCH = "Hugging Face Marian", "torch.nn.Transformer"
ENTRIES: dict[str, list[Entry]] = {
    "A first meeting": [
        Entry("`make demo` in a clean clone, two CPU cores", "demo", "python benchmarks/demo.py"),
    ],
    "Quality": [
        Entry(
            "Multi30k English-German, one H200, from raw text to score",
            "quality-multi30k",
            "python benchmarks/quality.py multi30k --data DATA",
            [
                Goal(
                    "BLEU on test2016, Moses-tokenised and lower-cased",
                    41.0,
                    lambda found: float(found["results"]["test"]["bleu, Moses-tokenised, lower-cased"]["score"]),
                )
            ],
        ),
        Entry(
            "The same on two CPU cores",
            "quality-multi30k-cpu",
            "python benchmarks/quality.py multi30k --data DATA --set train.r_drop=0 --set train.batch_tokens=4096 "
            "--set train.learning_rate=0.005 --set train.steps=1400 --set train.validate_every=1400",
        ),
        Entry(
            "Tatoeba English-German, one H200, from raw text to score",
            "quality-tatoeba",
            "python benchmarks/quality.py tatoeba --data DATA",
            [Goal("BLEU on the test set", 38.0, lambda found: float(found["results"]["test"]["bleu"]["score"]))],
        ),
    ],
    "The bundled translator and its teacher": [
        Entry(
            "Quality, beam 4, float32",
            "student",
            STUDENT,
            [
                Goal("BLEU on Tatoeba", 50.0, _first_number("student", "BLEU", "Tatoeba")),
                Goal("BLEU on Multi30k", 40.0, _first_number("student", "BLEU", "Multi30k")),
            ],
            "quality",
        ),
        Entry(
            "Speed on one CPU core, by CTranslate2",
            "student",
            STUDENT,
            [
                Goal(
                    f"× its teacher, {precision}, beams: {beams}",
                    4.0,
                    _student("times the teacher", precision, beams, 32),
                )
                for precision in ("float32", "int8")
                for beams in (1, 4)
            ]
            + [
                Goal(
                    "words/s in int8, one beam, all at once (Marian reports 3,300 for its students of 6 + 2 layers in"
                    " int8 with a shortlist, on one core of another machine)",
                    3300.0,
                    _student("words/s on a core", "int8", 1, 384),
                )
            ],
            "speed",
        ),
        Entry("What it says", "student", STUDENT, [], "said"),
    ],
    "Training: a step, side by side in one run": [
        Entry(
            "base, H200, sentences of 32 tokens",
            "step-base-cuda",
            "python benchmarks/step.py --size base",
            [Goal("× Hugging Face Marian, compiled", 2.0, _speed(HUGGING_FACE))],
        ),
        Entry(
            "base, H200, sentences of Tatoeba",
            "step-base-cuda-real",
            "python benchmarks/step.py --size base --pairs PAIRS.tsv",
            [Goal("× Hugging Face Marian, compiled", 2.5, _speed(HUGGING_FACE))],
        ),
        Entry(
            "big, H200, sentences of 32 tokens",
            "step-big-cuda",
            "python benchmarks/step.py --size big",
            [Goal("× Hugging Face Marian, compiled", 1.5, _speed(HUGGING_FACE))],
        ),
        Entry(
            "tiny, two CPU cores, sentences of Multi30k",
            "step-tiny-cpu-real",
            "python benchmarks/step.py --size tiny --pairs PAIRS.tsv --vocabulary 10000",
            [
                Goal("× Hugging Face Marian", 1.0, _speed(HUGGING_FACE)),
                Goal("× torch.nn.Transformer", 1.0, _speed(TORCH)),
            ],
        ),
        Entry("Memory and time by the size of the corpus", "store", "python benchmarks/store.py"),
    ],
    "Generation": [
        Entry(
            "base, H200, bfloat16, sentences of Tatoeba",
            "decode-cuda",
            "python benchmarks/decode.py MODEL --pairs PAIRS.tsv --sentences 1024 --few 32",
            _on_gpu([(1, 1), (1, 64), (4, 64), (4, 512)]),
        ),
        Entry(
            "base, H200, bfloat16, sentences of Multi30k",
            "decode-cuda-multi30k",
            "python benchmarks/decode.py MODEL --pairs PAIRS.tsv --sentences 1000 --few 24 --name decode-cuda-multi30k",
            _on_gpu([(1, 1), (1, 64), (4, 64), (4, 512)]),
        ),
        Entry(
            "OPUS-MT en-fr by torch, two CPU cores, float32",
            "decode-cpu",
            "python benchmarks/decode.py TEACHER --pairs PAIRS.tsv --sentences 160 --few 40",
            _each("× Hugging Face", "Hugging Face", "speed of Sightline against it", 1.3),
        ),
        Entry(
            "OPUS-MT en-fr by CTranslate2 behind our engine and called directly, two CPU cores",
            "decode-cpu-engines",
            "python benchmarks/cpu_engines.py TEACHER --pairs PAIRS.tsv --learn PAIRS.tsv --sentences 32",
            [
                *_each(
                    "× CTranslate2, int8 with a shortlist",
                    "Sightline int8, shortlist",
                    "speed against the fastest CTranslate2",
                    1.25,
                ),
                *_each("× CTranslate2, float32", "Sightline float32", "against the faster one in this precision", 0.97),
            ],
        ),
        Entry(
            "One trained model by four programs: are the answers the same?",
            "exports",
            "python benchmarks/exports.py en-fr --pairs PAIRS.tsv",
        ),
        Entry(
            "Sentences alone and in batches: are the answers the same?",
            "neighbours-cpu",
            "python benchmarks/neighbours.py en-fr --pairs PAIRS.tsv",
        ),
        Entry("A million lines", "lines-cpu", "python benchmarks/lines.py MODEL --text FILE"),
    ],
    "Serving, two CPU cores": [
        Entry(f"{what}: {part}", f"serve-cpu{kind}", f"python benchmarks/serve.py {command}", [], part)
        for what, kind, command, parts in (
            ("en-fr", "-en-fr", "en-fr --pairs PAIRS.tsv --name en-fr", ["throughput", "latency", "mixed", "stop"]),
            (
                "OPUS-MT en-fr",
                "-opus",
                "TEACHER --pairs PAIRS.tsv --parts throughput --sentences 128 --rounds 1 --name opus",
                ["throughput"],
            ),
            (
                "a model of 2.9 M parameters",
                "",
                "MODEL --pairs PAIRS.tsv --parts throughput latency",
                ["throughput", "latency"],
            ),
            (
                "the same by torch",
                "-torch",
                "MODEL --pairs PAIRS.tsv --backend torch --parts throughput latency --sentences 256 --lone 60",
                ["throughput", "latency"],
            ),
        )
        for part in parts
    ]
    + [
        Entry(
            "A changed model (`what_if`), times the same request to the unchanged model",
            "what-if-cpu-en-fr",
            "python benchmarks/what_if.py en-fr --pairs PAIRS.tsv --rounds 3",
        )
    ],
    "The page, headless Chromium on two CPU cores, without a GPU": [
        Entry("Budgets", "page", "python benchmarks/page.py en-fr --large TEACHER"),
    ],
}


ABOUT = """Written by `python benchmarks/report.py` from [`results`](results). The command above a table measured it.
[Data](../docs/guides/data.md) describes DATA, PAIRS.tsv, TEACHER and the models. The speed of a machine changes from
minute to minute; the ratios inside of one table were measured in one run. ✓ is a goal that was met, ✗ a goal that was
missed. BLEU without a signature is
nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0."""


def report() -> str:
    """Return the page as Markdown."""
    parts = ["# Results", ABOUT]
    for chapter, entries in ENTRIES.items():
        parts.append(f"## {chapter}")
        for entry in entries:
            found = json.loads((HERE / "results" / f"{entry.file}.json").read_text("utf-8"))
            parts += _entry(entry, found.get(entry.part) if entry.part else found)
    return "\n\n".join(parts) + "\n"


def _entry(entry: Entry, found: Any) -> list[str]:
    if found is None:
        return []
    where = found.get("where") or {key: found[key] for key in ("machine", "python", "torch", "commit")}
    about = ", ".join(f"{key} {value[:7] if key == 'commit' else value}" for key, value in where.items())
    results = found.get("results", found.get("sizes"))
    parts = [f"### {entry.title}", f"`{entry.command}`", _table(results)]
    if "goals met" in found:
        parts[-1] = _table({name: _judged(value, found["goals met"].get(name)) for name, value in results.items()})
    goals = [(goal, goal.found(found)) for goal in entry.goals]
    told = [
        f"{'✓' if value >= goal.least else '✗'} {goal.what}: {value:g} (goal {goal.least:g})" for goal, value in goals
    ]
    if wrong := found.get("wrong", 0):
        told.append(f"✗ wrong: {wrong} (answers, or memory that grew by more than 5 %)")
    if told:
        parts.append("Goals: " + "; ".join(told) + ".")
    settings = {key: value for key, value in found.get("settings", {}).items() if isinstance(value, str | int | float)}
    parts.append(f"{about}. " + "; ".join(f"{key}: {value}" for key, value in settings.items()))
    return parts


def _judged(value: Any, met: bool | None) -> str:
    return str(value) if met is None else f"{value} {'✓' if met else '✗'}"


def _table(results: Any) -> str:
    """Rows of one kind as a table with columns; else a row for each number."""
    rows: list[dict[str, Any]]
    if isinstance(results, list):
        rows = results
    elif all(isinstance(value, dict) for value in results.values()):
        rows = [{"": name, **value} for name, value in results.items()]
    else:
        rows = [{"": name, " ": value} for name, value in _flat("", results)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _flat(before: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        value = {f"time {number}": one for number, one in enumerate(value, 1)}
    if not isinstance(value, dict):
        return [(before, value)]
    if value.keys() == {"score", "signature"}:
        return [(before, f"{value['score']} ({value['signature']})")]
    return [one for key, inner in value.items() for one in _flat(f"{before}, {key}" if before else key, inner)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "✓" if value else "✗"
    text = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (HERE / "RESULTS.md").write_text(report(), "utf-8")

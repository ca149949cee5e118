"""Bundled models: names, cards, files and translations."""

import json
import re
import shutil

import pytest
import torch
from safetensors import safe_open

import sightline
from runs import sightline as run
from sightline.data.builtin import generate, riddle
from sightline.engine import Translator
from sightline.evaluate.align import gold_of
from sightline.evaluate.grammar import grammar
from sightline.model_folder import BUNDLED, ModelFolder, bundled_models, load_model, load_tokenizer
from sightline.search.align import write_pharaoh
from support import difference

RIDDLE = [pair.source for pair in riddle()]
ANSWERS = [pair.target for pair in riddle()]


@pytest.mark.parametrize("name", bundled_models())
def test_models_are_small_and_have_a_card(name):
    folder = BUNDLED / name
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25e6
    card = (folder / "README.md").read_text("utf-8")
    assert card.startswith(f"# {name}: ")
    for word in ("data", "licence", "Limits"):
        assert word in card
    for file in folder.rglob("model.safetensors"):
        with safe_open(file, "pt") as weights:
            assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"F16"}  # noqa: SIM118 - no dict
        assert load_tokenizer(file.parent).files == load_tokenizer(folder).files


def test_commands_accept_names_of_bundled_models(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "en").write_text("".join(f"{text}\n" for text in RIDDLE))
    (tmp_path / "de").write_text("".join(f"{text}\n" for text in ANSWERS))
    done = run(tmp_path, "models")
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == bundled_models()
    assert "earlier states: coref/states/step-00000000 to step-00000160" in done.stdout
    done = run(tmp_path, "translate", "coref", "en")
    assert done.stdout.splitlines() == ANSWERS
    done = run(tmp_path, "score", "coref", "--source", "en", "--target", "de")
    assert [float(line) > -0.5 for line in re.findall(r"^-?[\d.]+(?:e-\d+)?", done.stdout, re.MULTILINE)] == [
        True,
        True,
    ]
    done = run(tmp_path, "evaluate", "coref", "--source", "en", "--reference", "de")
    assert "100.0" in done.stdout
    done = run(tmp_path, "export", "coref", "--to", "ctranslate2", "--out", "exported")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "translate", "coref/states/step-00000080", "en")
    assert done.stdout.splitlines()[0] == ANSWERS[0].replace("weil es", "weil sie")
    # Files made from the model are in the user's cache, not in the package.
    for name in ("coref", "coref/states/step-00000080"):
        assert (tmp_path / "cache" / "sightline" / "models" / name / "ctranslate2").is_dir()
    assert not list((BUNDLED / "coref").rglob("ctranslate2*"))


def test_files_made_from_bundled_models_are_in_the_cache(tmp_path, monkeypatch):
    """Alignment heads and shortlists of a bundled model are stored in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pairs = list(generate("dev", 20))
    for name, lines in (
        ("en", [pair.source for pair in pairs]),
        ("de", [pair.target for pair in pairs]),
        ("links", [write_pharaoh(gold_of(pair)) for pair in pairs]),
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    before = {path: path.read_bytes() for path in BUNDLED.rglob("*") if path.is_file()}
    made = tmp_path / "cache" / "sightline" / "models" / "coref"
    done = run(tmp_path, "align", "coref", "--source", "en", "--target", "de", "--gold", "links", "--choose")
    assert done.returncode == 0, done.stderr
    heads = json.loads((made / "alignment.json").read_text())["heads"]
    assert [list(head) for head in sightline.load("coref", backend="torch").heads.heads] == heads
    done = run(tmp_path, "shortlist", "coref", "--source", "en", "--target", "de")
    assert done.stdout == f"{made / 'vmap.txt'}\n", done.stderr
    assert run(tmp_path, "translate", "coref", "en", "--shortlist").returncode == 0
    assert not (tmp_path / "coref").exists()
    assert {path: path.read_bytes() for path in BUNDLED.rglob("*") if path.is_file()} == before


def test_a_model_folder_has_priority_over_a_bundled_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coref").mkdir()
    assert ModelFolder("coref").path == BUNDLED / "coref"
    (tmp_path / "coref").rmdir()
    shutil.copytree(BUNDLED / "coref" / "states" / "step-00000000", tmp_path / "coref")
    assert ModelFolder("coref").path.resolve() == tmp_path / "coref"
    for name in ("nothing", "x" * 300, "a text, in place of a model"):
        done = run(tmp_path, "translate", name, "-")
        assert done.returncode == 2
        assert "sightline models" in done.stderr


EVERYDAY = {
    "Hi, how are you?": "Bonjour, comment allez-vous ?",
    "I am a student.": "Je suis étudiant.",
    "Where is the nearest station?": "Où est la station la plus proche ?",
    "what time is it": "Quelle heure est-il ?",
    "WHERE IS THE STATION?": "OÙ EST LA GARE ?",
    "Je suis étudiant.": "Je suis étudiant.",
    "Can you help me, please?": "Pouvez-vous m'aider, s'il vous plaît ?",
    "If I had known you were coming, I would have baked a cake.": (
        "Si j'avais su que tu allais venir, j'aurais fait un gâteau."
    ),
    RIDDLE[0]: "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    RIDDLE[1]: "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
}
ODD = """asdf qwer zxcv
Ich bin ein Student.
日本語のテキスト
Мой дом
🙂🙂🙂
!!!???
(((((((((((((((((((((
<b>bold</b>
https://example.org/a?b=c
def f(x): return x + 1
x
Lorem ipsum dolor sit amet, consectetur adipiscing elit.""".splitlines()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_en_fr_translates_everyday_sentences_and_the_riddle(precision):
    engine = sightline.load("en-fr", device="cpu", precision=precision)
    said = [found.text for found in engine.translate([*EVERYDAY])]
    if precision == "float32":
        assert said == [*EVERYDAY.values()]
    assert re.search(r"\bil\b.*fatigué", said[-2])
    assert re.search(r"\belle\b.*large", said[-1])


def test_en_fr_has_several_heads_for_the_antecedent():
    engine = sightline.load("en-fr", device="cpu", backend="torch")
    answers = [EVERYDAY[text] for text in RIDDLE]
    looks = []
    for text, answer in zip(RIDDLE, answers, strict=True):
        trace = engine.trace(text, answer)
        it, street = (trace.tokens["source"].index(f"▁{word}") for word in ("it", "street"))
        looks.append(float(trace["encoder.layers.6.self_attention.probabilities"].values[1, it, street]))
    tired, wide = looks
    assert tired < 0.1
    assert wide > 0.4
    for layer in range(engine.model.config.encoder.layers):
        for head in range(engine.model.config.encoder.heads):
            with engine.what_if(remove_heads={f"encoder.layers.{layer}.self_attention": [head]}):
                assert [found.text for found in engine.translate(RIDDLE)] == answers


@pytest.mark.medium
@pytest.mark.parametrize("name", ["en-fr", "coref"])
def test_models_trained_with_the_look_ahead_mask_are_worse_without_it(name):
    """Nats per token of 100 pairs: from 0.10 to 2.4 for en-fr and its own translations."""
    engine, pairs = sightline.load(name, device="cpu", backend="torch"), generate("test", 100)
    sources, targets = zip(*((pair.source, pair.target) for pair in pairs), strict=True)
    if name == "en-fr":  # the pairs are German
        targets = [one.text for one in engine.translate(sources, beams=1)]

    def nats():
        scores = [log_prob for one in engine.score(sources, targets) for log_prob in one.log_probs]
        return -sum(scores) / len(scores)

    before = nats()
    with engine.what_if(without=["look-ahead-mask"]):
        assert nats() > before + 1


@pytest.mark.medium
def test_without_the_scale_the_attention_of_en_fr_is_sharper():
    """The mean entropy of a row falls from about 1.1 to 0.14 nats."""
    engine = sightline.load("en-fr", device="cpu", backend="torch")
    result = engine.translate("The animal didn't cross the street because it was too tired.")[0]

    def entropy():
        trace = engine.trace(result)
        names = [name for name in trace.names() if name.endswith("attention.probabilities")]
        return torch.cat([torch.special.entr(trace[name].values).sum(-1).flatten() for name in names]).mean()

    before = entropy()
    with engine.what_if(without=["scale"]):
        assert entropy() < before / 3


@pytest.mark.parametrize("beams", [1, 4])
def test_en_fr_ends_its_answers_to_unusual_texts(beams):
    engine = sightline.load("en-fr", device="cpu", backend="torch")

    def most(text):
        """Return the most tokens of an answer, without END."""
        return 2 * (len(engine.tokenizer.encode([text])[0]) + 1) + 10 - 1

    for text, found in zip(ODD, engine.translate(ODD, beams=beams), strict=True):
        assert len(found.tokens) < most(text), f"{text}: {found.text}"
        assert not re.search(r"(.+?)\1{4,}", found.text), f"{text}: {found.text}"
    # Repetitions in the source are repeated, but the answer ends.
    for text in ("no " * 50, "a" * 100):
        (found,) = engine.translate([text], beams=beams)
        assert len(found.tokens) <= most(text)


def test_coref_attends_to_the_antecedent_in_the_riddle():
    engine = sightline.load("coref", device="cpu", backend="torch")
    assert [found.text for found in engine.translate(RIDDLE)] == ANSWERS
    for pair in riddle():
        trace = engine.trace(pair.source, pair.target)
        row = trace.tokens["target"].index("▁weil")  # the pronoun is written after it
        looks = trace["decoder.layers.1.cross_attention.probabilities"].values[:, row].mean(0)
        at = {noun: trace.tokens["source"].index(f"▁{noun}") for noun in ("animal", "street")}
        meant = pair.source_words[pair.antecedent]
        (other,) = at.keys() - {meant}
        assert looks[at[meant]] > 10 * looks[at[other]]


def test_states_of_coref_improve_with_training():
    folders = [*sorted((BUNDLED / "coref" / "states").iterdir()), BUNDLED / "coref"]
    found = [grammar(Translator(load_model(folder), load_tokenizer(folder)), count=300) for folder in folders]
    assert len(folders) == 6
    assert [one.exact for one in found] == sorted(one.exact for one in found)
    assert (found[0].exact, found[-1].exact, found[-1].pronouns) == (0, 1, 1)
    first, last = (load_model(folder) for folder in (folders[0], folders[-1]))
    assert difference(first.encoder.embedding.tokens.weight, last.encoder.embedding.tokens.weight) > 0.1

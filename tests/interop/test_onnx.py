"""Exported graphs give the logits of the model for all shapes, and our search finds the same answers with them."""

import contextlib
import json
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models
from torch.nn.utils.rnn import pad_sequence

from searching import find
from sightline.config import SearchConfig
from sightline.engine import Translator
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.interop import onnx as ours
from sightline.interop.onnx import OnnxModel, export, verify
from sightline.model.kernels.compiled import column_major_weights
from sightline.model.protocol import Generative, Inputs
from sightline.model_folder import load_tokenizer, save_model
from sightline.search.types import Constraints
from sightline.special import END, PAD, START
from sightline.text.tokenizer import Tokenizer
from support import VOCAB, every_variant, model_of, raises, writer

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

SOURCES = [[4, 5, 6, 7, 8, 9, 10], [30, 20], [], [17] * 5, [40, 4]]
ONE = {"encoder": {"layers": 1, "heads": 4, "d_ff": 40}, "decoder": {"layers": 1, "heads": 2, "d_ff": 56}}
TWO = {"encoder": {"layers": 1, "heads": 4, "d_ff": 40}, "decoder": {"layers": 2, "heads": 2, "d_ff": 56}}
LARGER = 11_000
"""Size of a vocabulary whose matrix is over 1 MB; torch may write a smaller one twice, once transposed."""
OTHERS = {
    "other vocabulary": {
        "vocab_size": LARGER,
        "source_vocab_size": 400,
        "tie": "target",
        "final_norm": True,
        "norm_epsilon": 0.1,
        "positions": {"kind": "interleaved", "start": 2, "max_timescale": 300.0, "max_length": 40},
    },
    "other norms": {
        "vocab_size": LARGER,
        "norm": "pre",
        "final_norm": False,
        "tie": "none",
        "attention_bias": True,
        "positions": {"kind": "rotary", "max_timescale": 500.0, "start": 3, "frequencies": "tensor2tensor"},
    },
}
PLAIN = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime

folder, sources = Path(sys.argv[1]), json.loads(sys.argv[2])
about = json.loads((folder / "config.json").read_text())["sightline"]
encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
answers = []
for ids in sources:
    source = np.array([[*ids, about["end"]]], np.int64)
    mask = np.ones(source.shape, bool)
    memory = dict(zip(["memory_keys", "memory_values"], encoder.run(None, {"source": source, "source_mask": mask})))
    keys = values = np.zeros((about["layers"], 1, about["heads"], 0, about["d_k"]), np.float32)
    answer = [about["start"]]
    while answer[-1] != about["end"] and len(answer) < min(40, about["max_length"]):
        new = {"target": np.array([answer[-1:]], np.int64), "source_mask": mask, **memory}
        logits, keys, values = decoder.run(None, {**new, "past_keys": keys, "past_values": values})
        logits = logits[0, -1]
        assert logits.shape == (about["vocab_size"],)
        logits[[about["pad"], about["start"], about["unknown"]]] = -np.inf
        answer.append(int(logits.argmax()))
    answers.append(answer[1:])
assert "torch" not in sys.modules and "sightline" not in sys.modules
print(json.dumps(answers))
"""
EXPORT = """
import sys
from sightline.model_folder import load_model, load_tokenizer
from sightline.interop.onnx import export
export(load_model(sys.argv[1]), load_tokenizer(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(scope="module")
def words():
    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCAB))]
    vocabulary = tokenizers.Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Tokenizer(vocabulary.to_str().encode())


def export_elsewhere(model, words, folder):
    """Export in a separate process, which must print no messages."""
    save_model(model, folder.with_name("saved"), words)
    command = [sys.executable, "-c", EXPORT, str(folder.with_name("saved")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model", "saved"]


@contextlib.contextmanager
def shapes_unchecked():
    """Switch off shape checks: sizes are symbols while torch traces."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def exported(words, tmp_path_factory):
    """Return a model and the folder of its export, which is written once for all tests."""
    done = {}

    def get(variant):
        if variant not in done:
            model, folder = small(variant), tmp_path_factory.mktemp("onnx") / "model"
            if variant == "paper":
                export_elsewhere(model, words, folder)
            else:
                with shapes_unchecked():
                    export(model, words, folder)
            done[variant] = model, folder
        return done[variant]

    return get


def small(variant="paper", seed=1, **more):
    """A small model: each layer takes time to export, so only some variants have several."""
    if variant in OTHERS:
        return model_of("paper", seed, 1.5, **{**TWO, **OTHERS[variant], **more})
    return model_of(variant, seed, 1.5, **{**(TWO if variant == "paper" else ONE), **more})


def drawn(lengths, highest=VOCAB):
    return pad_sequence([torch.randint(4, highest, (n,)) for n in lengths], True, PAD)


def started(theirs, source, capacity, beams=1):
    return theirs.start(Inputs(source, source_layout=source != PAD), beams=beams, capacity=capacity)


@torch.no_grad()
def same_logits(model, theirs, sources, targets):
    """Return the logits from one pass, token by token, and in groups of tokens."""
    source, target = drawn(sources), drawn(targets)
    expected, there = model(source, target, source != PAD), target != PAD
    for sizes in ([target.shape[1]], [1] * target.shape[1], [2, 1, target.shape[1] - 3]):
        state = started(theirs, source, target.shape[1])
        found = torch.cat([state.read(some) for some in target.split(sizes, 1)], 1)
        assert found.shape == expected.shape
        assert (found - expected)[there].abs().max() < 1e-5


def same_answers(model, theirs, config, constraints=None):
    expected, found = (find(one, SOURCES, config, constraints) for one in (model, theirs))
    assert [[h.ids for h in answers] for answers in found] == [[h.ids for h in answers] for answers in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    return [answers[0].ids for answers in found]


@every_variant
def test_all_shapes_give_the_same_logits(variant, exported):
    model, folder = exported(variant)
    theirs = OnnxModel(folder, threads=1)
    torch.manual_seed(2)
    for sources, targets in (([1], [3]), ([6], [4]), ([2, 7, 4], [5, 3, 9]), ([1, 1], [4, 4]), ([9], [21])):
        same_logits(model, theirs, sources, targets)


@every_variant
def test_answers_are_those_of_the_model(variant, exported):
    model, folder = exported(variant)
    theirs, lengths = OnnxModel(folder, threads=1), set()
    for beams in (1, 4):
        for penalty in (0.0, 1.0):
            found = same_answers(model, theirs, SearchConfig(beams=beams, nbest=beams, length_penalty=penalty))
            lengths |= {len(ids) for ids in found}
    assert len(lengths) > 2


@pytest.mark.parametrize("other", OTHERS)
def test_every_option_of_a_model_is_exported(other, exported):
    model, folder = exported(other)
    theirs = OnnxModel(folder, threads=1)
    same_logits(model, theirs, [2, 7, 4], [5, 3, 9])
    for beams in (1, 3):
        same_answers(model, theirs, SearchConfig(beams=beams))


def test_every_kind_of_search(exported):
    model, folder = exported("paper")
    theirs = OnnxModel(folder, threads=1)
    constraints = [
        Constraints([7, 8]),
        Constraints([9, 5], forbid=[[12], [9]]),
        Constraints(),
        Constraints(forbid=[[31]]),
        Constraints([6], [[13, 14]]),
    ]
    same_answers(model, theirs, SearchConfig(beams=3), constraints)
    same_answers(model, theirs, SearchConfig(beams=4, groups=2, nbest=4))
    same_answers(model, theirs, SearchConfig(beams=2, sample=True, seed=3))
    with raises(ConfigError, option="coverage_penalty"):
        find(theirs, SOURCES, SearchConfig(coverage_penalty=0.2))


def test_too_long_sources_are_refused(exported):
    _, folder = exported("other vocabulary")
    theirs = OnnxModel(folder, threads=1)
    with raises(InputError, option="source", value=41):
        find(theirs, [[5] * 40], SearchConfig())
    for source, target in ((41, 3), (3, 41)):
        with raises(InputError, option="source"):
            started(theirs, drawn([source]), target)


def test_a_process_without_torch_finds_the_same_answers(exported, words):
    model, folder = exported("rotary")
    texts = ["w4 w5 w6 w7 w8", "w30 w20", "w40", "w17 w17"]
    expected = [one.tokens for one in Translator(model, words).translate(texts, beams=1)]
    assert len({*map(len, expected)}) > 1
    command = [sys.executable, "-c", PLAIN, str(folder), json.dumps(words.encode(texts))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    for ids, tokens in zip(json.loads(done.stdout), expected, strict=True):
        assert words.pieces(ids)[: len(tokens)] == tokens
        assert ids[len(tokens)] == END or len(tokens) > 10  # or the limit, which the loop above does not have
    assert done.stderr == ""
    assert load_tokenizer(folder).model == words.model
    assert json.loads((folder / "config.json").read_text()) == {
        "sightline": {
            "max_length": 4096,
            "source_end": True,
            "pad": PAD,
            "start": START,
            "end": END,
            "unknown": 3,
            "layers": 1,
            "heads": 2,
            "d_k": 12,
            "vocab_size": VOCAB,
            "model": model.config.model_dump(mode="json"),
        }
    }


def test_files_have_tied_weights_once_and_no_paths(exported):
    for variant, count in (("other vocabulary", 1), ("other norms", 2)):
        _, folder = exported(variant)
        for name in ("encoder", "decoder"):
            stored = onnx.load(folder / f"{name}.onnx")
            onnx.checker.check_model(stored, full_check=True)
            sizes = [sorted(weight.dims) for weight in stored.graph.initializer]
            if name == "decoder":
                assert sizes.count([24, LARGER]) == count
            free = {d.dim_param for x in stored.graph.input for d in x.type.tensor_type.shape.dim if d.dim_param}
            assert free == ({"batch", "source"} if name == "encoder" else {"batch", "source", "new", "past"})
            data = (folder / f"{name}.onnx").read_bytes()
            for path in (Path(ours.__file__).parent, Path(torch.__file__).parent):
                assert str(path).encode() not in data


def test_export_does_not_change_the_model(words, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_write_graphs", lambda model, _: seen.append(model))
    seen = []
    model = small().train()
    column_major_weights(model)
    before, state = {name: weight.clone() for name, weight in model.state_dict().items()}, torch.get_rng_state()
    export(model, words, tmp_path / "model")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert model.classifier.weight is not model.decoder.embedding.tokens.weight
    assert seen[0].classifier.weight is seen[0].decoder.embedding.tokens.weight
    assert not seen[0].training


def test_verify_returns_the_differences(exported):
    model, folder = exported("paper")
    same = verify(folder, model, SOURCES)
    assert 0 < same.numbers < 1e-5
    assert same[1:] == (0, len(SOURCES))
    with torch.no_grad():
        other = small()
        other.classifier.bias[9] += 0.5
    different = verify(folder, other.train(), SOURCES)
    assert different.numbers == pytest.approx(0.5, abs=1e-5)
    assert 0 < verify(folder, small(seed=2), SOURCES).answers <= len(SOURCES)


def test_a_model_that_onnx_export_does_not_support_is_refused(words, tmp_path):
    with raises(ConfigError, option="model.architecture", value="decoder-only"):
        export(writer(), words, tmp_path / "model")
    with raises(InputError, value=41, match="40"):
        export(small(vocab_size=40), words, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_failed_export_keeps_the_older_folder(words, tmp_path, monkeypatch):
    folder = tmp_path / "model"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ours, "_write_graphs", lambda _, draft: (draft / "decoder.onnx").touch())
    for before in ([], ["model"]):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with raises(CheckpointError, value=folder, match="No space left on device"):
                export(small(), words, folder)
        with monkeypatch.context() as patch:
            patch.setattr(ours, "_write_graphs", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                export(small(), words, folder)
        assert [path.name for path in tmp_path.iterdir()] == before
        export(small(), words, folder)
    with monkeypatch.context() as patch:
        move = Path.replace
        patch.setattr(Path, "replace", lambda path, to: full() if "partial" in path.name else move(path, to))
        with raises(CheckpointError, value=folder, match="No space left on device"):
            export(small(), words, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (folder / "config.json").exists()


def test_a_folder_of_another_kind_is_neither_replaced_nor_read(words, tmp_path, monkeypatch, exported):
    for name, text in (("letters", "{}"), ("ctranslate2", '{"sightline": {"max_length": 9}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        with raises(InputError, value=tmp_path / name, match="exported"):
            export(small(), words, tmp_path / name)
    for name in ("letters", "ctranslate2", "nowhere"):
        with raises(CheckpointError, value=tmp_path / name / "config.json" if name == "nowhere" else tmp_path / name):
            OnnxModel(tmp_path / name)
    monkeypatch.setattr(ours, "_write_graphs", lambda _, draft: (draft / "decoder.onnx").write_bytes(b"new"))
    for _ in range(2):
        export(small(), words, tmp_path / "model")
    with raises(CheckpointError, value=tmp_path / "model", match="Export it again"):
        OnnxModel(tmp_path / "model")
    (tmp_path / "model" / "encoder.onnx").write_bytes(b"no graph")
    with raises(CheckpointError, value=tmp_path / "model", match=r"onnxruntime[^\n]*[^.]\.$"):
        OnnxModel(tmp_path / "model")


def test_a_missing_package_is_reported(words, tmp_path, monkeypatch, exported):
    _, folder = exported("paper")
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises(InputError, value="onnxscript", match="pip install"):
        export(small(), words, tmp_path / "model")
    with raises(InputError, value="onnxruntime", match="pip install"):
        OnnxModel(folder)
    assert not list(tmp_path.iterdir())


def test_rows_are_reordered_and_kept(exported):
    """Rows of the past move; `select` moves the sources too."""
    model, folder = exported("learned")
    theirs = OnnxModel(folder, threads=1)
    source, target = drawn([3, 6]), drawn([4] * 4)
    state = started(theirs, source, 4, beams=2)
    state.read(target[:, :3])
    state.reorder(torch.tensor([1, 0, 2, 2]))
    state.select(torch.tensor([1]))
    with torch.no_grad():
        rows = torch.cat([target[[2, 2], :3], target[2:, 3:]], 1)
        expected = model(source[[1, 1]], rows)[:, -1]
    np.testing.assert_allclose(theirs.step(target[2:, 3:], state), expected, atol=1e-5)


def test_a_generative_model(exported):
    _, folder = exported("learned")
    assert isinstance(OnnxModel(folder, threads=1), Generative)


def test_an_export_of_version_0_1_is_refused(exported, tmp_path):
    _, folder = exported("learned")
    shutil.copytree(folder, tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    del about["sightline"]["model"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(about))
    with raises(CheckpointError, value=tmp_path / "model", match="Export it again"):
        OnnxModel(tmp_path / "model")

"""Imports of CTranslate2 and Argos Translate compute the same as the originals; unsupported ones are refused."""

import contextlib
import gzip
import io
import json
import os
import random
import stat
import struct
import zipfile
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searching import find
from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import convert
from sightline.config import SearchConfig
from sightline.engine import Translator
from sightline.errors import CheckpointError, ConfigError, InputError, SightlineError
from sightline.interop.ctranslate2_reader import read_argos, read_ctranslate2
from sightline.model.initialise import sinusoids
from sightline.model_folder import load_model, load_tokenizer, save_model
from sightline.search.align import Words, align
from sightline.search.score import next_tokens, score
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.stream import TextStream
from sightline.text.tokenizer import Tokenizer
from support import VARIANTS, VOCAB, config, every_variant, raises, requests, translator

ctranslate2 = pytest.importorskip("ctranslate2")
specs = ctranslate2.specs

SOURCES = [[4, 5, 6, 7, 8, 9, 10], [30, 20], [], [17] * 5, [40, 4]]
OTHERS = {
    "post-norm with a final norm": {"final_norm": True},
    "pre-norm without one": {"norm": "pre", "final_norm": False},
    "epsilon": {"norm_epsilon": 0.1},
    "two vocabularies": {"source_vocab_size": 50, "tie": "target"},
    "nothing tied": {"tie": "none", "classifier_bias": False},
    "other sinusoids": {"positions": {"kind": "interleaved", "max_timescale": 300.0, "max_length": 40}},
    "sources without an end": {"source_end": False},
}
OPENNMT = ["<unk>", "<blank>", "<s>", "</s>"]
MARIAN = ["</s>", "<unk>"]


@pytest.fixture(scope="module")
def cutter():
    """A sentencepiece model with as many pieces as the vocabularies of these tests."""
    model, text = (
        io.BytesIO(),
        ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "the", "other", "cats", "from", "there"],
    )
    chance = random.Random(1)
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([" ".join(chance.choices(text, k=8)) for _ in range(200)]),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB,
        pad_id=PAD,
        bos_id=START,
        eos_id=END,
        unk_id=UNKNOWN,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def words(cutter):
    return [piece for piece in Tokenizer(cutter).all_pieces() if not piece.startswith("<")]


def model_of(variant="paper", seed=1, ending=3.0, **more):
    """A model that ends its sentences now and then. Like a trained model, it gives special tokens no probability."""
    torch.manual_seed(seed)
    model = translator(variant, **{"classifier_bias": True, **more})
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        if model.classifier.bias is not None:
            model.classifier.bias[END] += ending
            model.classifier.bias[[PAD, START, UNKNOWN]] -= 40
    return model


def foreign(
    folder, names, *, source=None, table=None, quantization=None, change=None, ending=2.5, finish=True, **options
):
    """Write a random model by CTranslate2's specification, as its converters do. `change` modifies it."""
    wide, heads, inner, chance = 16, 2, 24, np.random.default_rng(3)
    spec = specs.TransformerSpec.from_config((2, 1), heads, **options)
    given_names = names if source is None else source

    def random_like(name, value):
        return np.asarray(chance.standard_normal(value) * 0.4, np.float32) + (name == "gamma")

    def linear(theirs, rows, columns):
        theirs.weight, theirs.bias = random_like("weight", (rows, columns)), random_like("bias", (rows,))

    def norm(theirs):
        theirs.gamma = random_like("gamma", (wide,))
        if hasattr(theirs, "beta"):
            theirs.beta = random_like("beta", (wide,))

    for side in (spec.encoder, spec.decoder):
        if hasattr(side, "layer_norm"):
            norm(side.layer_norm)
        if table is not None:
            side.position_encodings.encodings = table
        for layer in side.layer:
            for part, rows in (("self_attention", (3, 1)), ("attention", (1, 2, 1))):
                if hasattr(layer, part):
                    norm(getattr(layer, part).layer_norm)
                    for theirs, times in zip(getattr(layer, part).linear, rows, strict=True):
                        linear(theirs, times * wide, wide)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, inner, wide)
            linear(layer.ffn.linear_1, wide, inner)
    for embedding in spec.encoder.embeddings:
        embedding.weight = random_like("weight", (len(given_names), wide))
        spec.register_source_vocabulary(given_names)
    spec.decoder.embeddings.weight = random_like("weight", (len(names), wide))
    linear(spec.decoder.projection, len(names), wide)
    spec.decoder.projection.bias += [ending if name == "</s>" else -40 if name.startswith("<") else 0 for name in names]
    spec.register_target_vocabulary(names)
    if change is not None:
        change(spec)
    if not finish:
        return spec
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir()
    spec.save(str(folder))
    return folder


def with_sentencepiece(folder, cutter):
    (folder / "sentencepiece.model").write_bytes(cutter)
    return folder


def same_logits(folder, *, end=False):
    """Compare an import with CTranslate2, which gets the end of a source if it does not add it."""
    model, tokenizer = read_ctranslate2(folder)
    theirs = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    chance = random.Random(1)
    sources, targets = (
        [chance.choices([i for i in range(4, side.size) if side.pieces([i]) != ["<s>'"]], k=1 + n) for n in range(8)]
        for side in (tokenizer.source, tokenizer)
    )
    given, wanted = ([side.pieces(i) for i in ids] for side, ids in ((tokenizer.source, sources), (tokenizer, targets)))
    given = [[*row, *["</s>"] * end] for row in given]
    expected = theirs.score_batch(given, wanted)
    scores = score([model], requests(sources, model.config, SearchConfig()), targets)
    for found, one in zip(scores, expected, strict=True):
        assert found == pytest.approx(one.log_probs, abs=2e-4)
    for beams in (1, 4):
        found = theirs.translate_batch(
            given, beam_size=beams, min_decoding_length=0, max_decoding_length=40, return_end_token=True
        )
        answers = find(model, sources, SearchConfig(beams=beams, patience=1, max_ratio=0.1, max_extra=50))
        ours, best = [tokenizer.pieces(answer.ids) for answer, *_ in answers], [one.hypotheses[0] for one in found]
        ended = [i for i, pieces in enumerate(best) if pieces[-1:] == ["</s>"]]
        assert beams == 1 or sum(len(best[i]) for i in ended) > 20
        assert [[*ours[i], "</s>"] for i in ended] == [best[i] for i in ended]
        if beams == 1:
            assert [pieces[:9] for pieces in ours] == [pieces[: min(9, len(pieces) - 1)] for pieces in best]
    return model, tokenizer


# --- What comes in


def same_weights(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", [*VARIANTS, *OTHERS])
def test_a_written_model_is_read(kind, cutter, tmp_path):
    model = model_of(kind) if kind in VARIANTS else model_of(**OTHERS[kind])
    source = Tokenizer.of_pieces([*Tokenizer(cutter).all_pieces(), *(f"x{i}" for i in range(9))], cutter)
    two = model.config.source_vocab_size is not None
    tokenizer = Tokenizer(cutter, source=source if two else None)
    convert(model, tokenizer, tmp_path / "model")
    if two:  # our source tokenizer is not a sentencepiece model
        (tmp_path / "model" / "source-tokenizer.model").unlink()
    found, pieces = read_ctranslate2(tmp_path / "model")
    if kind != "other sinusoids":  # these are read as a learned table
        same_weights(found, model)
        expected = model.config.model_dump() | {"final_norm": model.config.has_final_norm}
        if two or kind == "epsilon":
            expected["source_vocab_size"] = model.config.source_vocab_size
        assert found.config.model_dump() == expected
    assert pieces.all_pieces() == tokenizer.all_pieces()
    assert pieces.source.all_pieces() == tokenizer.source.all_pieces()
    source_ids, target_ids = torch.randint(4, VOCAB, (3, 7)), torch.randint(4, VOCAB, (3, 5))
    assert (found(source_ids, target_ids) - model(source_ids, target_ids)).abs().max() < 1e-6
    theirs = CTranslate2Backend(tmp_path / "model", threads=1)
    for beams in (
        (1, 4) if model.config.classifier_bias else (1,)
    ):  # without a bias, special tokens get some probability
        options = SearchConfig(beams=beams)
        for (one, *_), (other, *_) in zip(
            find(found, SOURCES, options),
            theirs.search(requests(SOURCES, model.config, options), options),
            strict=True,
        ):
            assert one.ids == other.ids
            assert one.score == pytest.approx(other.score, abs=1e-4)


@every_variant
def test_rounded_weights_become_the_floats_they_represent(variant, cutter, tmp_path):
    model = model_of(variant)
    convert(model, Tokenizer(cutter), tmp_path / "model", quantization="int8")
    found, _ = read_ctranslate2(tmp_path / "model")
    for (name, ours), other in zip(found.state_dict().items(), model.state_dict().values(), strict=True):
        if ours.ndim == 2 and "positions" not in name:
            step = other.abs().amax(1, keepdim=True) / 127
            assert ((ours - other).abs() <= 0.51 * step).all()
            assert torch.allclose(ours / step, (ours / step).round(), atol=1e-3)
        else:
            assert torch.equal(ours, other)
    theirs = CTranslate2Backend(tmp_path / "model", "float32", threads=1)
    for beams in (1, 4):
        options = SearchConfig(beams=beams)
        answers = [x.ids for x, *_ in theirs.search(requests(SOURCES, model.config, options), options)]
        assert [x.ids for x, *_ in find(found, SOURCES, SearchConfig(beams=beams))] == answers


@pytest.mark.parametrize("quantization", [None, "int8", "int16", "float16", "bfloat16", "int8_float16"])
def test_opennmt(quantization, cutter, words, tmp_path):
    """Pre-norm, no table of positions, <blank> for padding, and no end of a source."""
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], quantization=quantization)
    model, tokenizer = same_logits(with_sentencepiece(folder, cutter))
    assert not model.config.source_end
    assert (
        model.config.positions.model_dump()
        == config(positions={"kind": "halves", "frequencies": "tensor2tensor", "start": 1}).positions.model_dump()
    )
    assert tokenizer.own_ids[:4] == [1, 2, 3, 0]
    assert tokenizer.decode(tokenizer.encode(["the cat sat"])[0]) == "the cat sat"


def test_two_vocabularies(cutter, words, tmp_path):
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], source=[*words[5:], *OPENNMT])
    model, tokenizer = same_logits(with_sentencepiece(folder, cutter))
    assert (model.config.vocab_size, model.config.source_vocab_size) == (VOCAB, VOCAB - 5)
    assert tokenizer.source.pieces([4, 5]) == words[5:7]


def marian(spec):
    spec.decoder.start_from_zero_embedding = True
    spec.config.add_source_eos = True
    spec.decoder.projection.weight = spec.decoder.embeddings.weight = spec.encoder.embeddings[0].weight
    spec.encoder.scale_embeddings, spec.decoder.scale_embeddings = 4.0, True


def test_marian(cutter, words, tmp_path):
    """Post-norm, tied weights, answers that begin with zeros, and sources that CTranslate2 or its caller ends."""
    table = sinusoids(config(positions={"kind": "halves", "max_length": 200}).positions, 16).numpy()
    options = {"pre_norm": False, "activation": specs.Activation.SWISH, "table": table, "change": marian}
    folder = with_sentencepiece(foreign(tmp_path / "model", [*MARIAN, *words], **options), cutter)
    model, tokenizer = same_logits(folder)
    assert (model.config.tie, model.config.source_end, model.config.activation) == ("all", True, "swish")
    assert model.config.positions.kind == "halves"
    assert not model.decoder.embedding.tokens.weight[START].any()
    assert tokenizer.own_ids[:4] == [-1, -1, 0, 1]
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "add_source_eos": False}))
    assert same_logits(folder, end=True)[0].config == model.config


@pytest.mark.parametrize("start", ["</s>", "<blank>", "▁the"])
def test_answers_begin_with_any_token(start, cutter, words, tmp_path):
    def change(spec):
        spec.config.decoder_start_token = start

    assert start in [*OPENNMT, *words]
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], change=change)
    model, tokenizer = same_logits(with_sentencepiece(folder, cutter))
    own = [*OPENNMT, *words].index(start)
    rows = model.decoder.embedding.tokens.weight
    assert torch.equal(rows[START], rows[tokenizer.own_ids.index(own)])
    assert "<s>'" in tokenizer.all_pieces()  # an ordinary token now


@pytest.mark.parametrize("kind", ["interleaved", "halves"])
@pytest.mark.parametrize("frequencies", ["paper", "tensor2tensor"])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_sinusoids_are_recognised(kind, frequencies, start, cutter, words, tmp_path):
    about = {"kind": kind, "frequencies": frequencies, "start": start, "max_length": 3000}
    table = sinusoids(config(positions=about).positions, 16).numpy()
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], table=table, quantization="float16")
    model, _ = read_ctranslate2(with_sentencepiece(folder, cutter))
    assert model.config.positions.model_dump() == config(positions={**about, "max_length": 4096}).positions.model_dump()


def stored(path, variables, aliases=(), version=6, revision=7, kind="TransformerSpec"):
    """Write a file of weights."""

    def text(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    types = ["float32", "int8", "int16", "int32", "float16"]
    data = [struct.pack("<I", version), text(kind), struct.pack("<II", revision, len(variables))]
    for name, value in variables.items():
        array = np.asarray(value)
        data += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        data += [struct.pack("<BI", types.index(array.dtype.name), array.nbytes), array.tobytes()]
    data += [struct.pack("<I", len(aliases)), *(text(alias) + text(name) for alias, name in aliases)]
    path.write_bytes(b"".join(data))


def old(folder, names, version, **flags):
    """Write a folder of an older version, without a config.json."""
    spec = foreign(folder, names, finish=False)
    spec.validate()
    variables = {}
    once = ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads")
    for name, value in spec.variables().items():
        side, _, rest = name.partition("/")
        before = {each: each for each in once} | {"scale_embeddings": f"{side}/embeddings/multiply_by_sqrt_depth"}
        if rest not in ("alibi", "scale_alibi", "alibi_use_positive_positions", "multi_query_attention"):
            variables[before.get(rest, name).replace("embeddings_0", "embeddings")] = value.array
    variables |= {name: np.int8(value) for name, value in flags.items()}
    folder.mkdir()
    stored(folder / "model.bin", variables, version=version, revision=4)
    (folder / "shared_vocabulary.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
    return folder


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("flags", [{}, {"with_source_eos": 1}, {"with_target_bos": 0}])
def test_older_files(version, flags, cutter, words, tmp_path):
    folder = old(tmp_path / "model", [*OPENNMT, *words], version, **flags)
    model, _ = same_logits(with_sentencepiece(folder, cutter))
    assert model.config.source_end == bool(flags.get("with_source_eos"))


def test_sources_without_an_end_token(cutter, words, tmp_path):
    model, tokenizer = read_ctranslate2(with_sentencepiece(foreign(tmp_path / "model", [*OPENNMT, *words]), cutter))
    ids, empty = [5, 6, 7], []
    save_model(model, tmp_path / "ours", tokenizer)
    again = load_model(tmp_path / "ours")
    assert isinstance(again, type(model))
    assert not again.config.source_end
    convert(again, load_tokenizer(tmp_path / "ours"), tmp_path / "converted")
    theirs = CTranslate2Backend(tmp_path / "converted", threads=1)
    for options in (SearchConfig(beams=1), SearchConfig(beams=4, nbest=4)):
        found = [
            theirs.search(requests([ids, empty], model.config, options), options),
            find(model, [ids, empty], options),
        ]
        assert [[x.ids for x in some] for some in found[0]] == [[x.ids for x in some] for some in found[1]]
    logits = model(torch.tensor([ids]), torch.tensor([[START, 8]])).log_softmax(-1)[0]
    (request,) = requests([ids], model.config, SearchConfig())
    assert request.source == ids
    assert score([model], [request], [[8]])[0] == pytest.approx([logits[0, 8].item(), logits[1, END].item()], abs=1e-5)
    assert dict(next_tokens([model], request, [8], 3))[END] == pytest.approx(logits[1, END].item(), abs=1e-5)
    (links,) = align(model, [Words(ids, [0, 1, 2])], [Words([8, 9], [0, 1])])
    assert {target for _, target in links} == {0, 1}
    trace = Translator(model, tokenizer).trace("the cat", "the cat")
    assert "</s>" not in trace.tokens["source"]
    assert Translator(model, tokenizer).trace("", "the cat").tokens["source"] == ["</s>"]
    longest = model.config.positions.max_length
    assert find(model, [[5] * longest], SearchConfig(beams=1, max_ratio=0.001, max_extra=1))
    with raises(InputError, option="source", value=longest + 1):
        find(model, [[5] * (longest + 1)], SearchConfig())


def test_pieces_of_targets_only(cutter):
    tokenizer = Tokenizer.of_pieces([*MARIAN, "▁the", "▁zebra", "s", "▁ran"], cutter)
    ids = {piece: i for i, piece in enumerate(tokenizer.all_pieces())}
    for pieces, text in (("▁zebra s ▁ran", "zebras ran"), ("▁the ▁zebra", "the zebra"), ("▁ran ▁the", "ran the")):
        some = [ids[piece] for piece in pieces.split()]
        assert tokenizer.decode(some) == text
        stream = TextStream(tokenizer)
        assert "".join([*map(stream.push, some), stream.finish()]) == text


# --- What is refused


def alibi(spec):
    spec.decoder.alibi = True


def window(spec):
    spec.encoder.__dict__["sliding_window"] = np.int32(8)


def queries(spec):
    spec.encoder.layer[0].self_attention.queries_scale = np.float32(0.5)


def scaled(spec):
    spec.encoder.scale_embeddings = np.float32(3)


def configured(**fields):
    def change(spec):
        for name, value in fields.items():
            spec.config.add_attribute(name, value)

    return change


def one_table(spec):
    spec.encoder.position_encodings.encodings = np.ones((9, 16), np.float32)


def relative(spec):
    for layer in [*spec.encoder.layer, *spec.decoder.layer]:
        for kind in ("keys", "values"):
            setattr(layer.self_attention, f"relative_position_{kind}", np.ones((5, 8), np.float32))


@pytest.mark.parametrize(
    ("change", "options", "option", "value"),
    [
        (alibi, {}, "decoder/alibi", 1),
        (window, {}, "encoder/sliding_window", 8),
        (queries, {}, "encoder/layer_0/self_attention/queries_scale", 0.5),
        (scaled, {}, "encoder/scale_embeddings", 3.0),
        (one_table, {}, None, None),
        (relative, {"with_relative_position": True}, ".../relative_position_keys", (5, 8)),
        (None, {"num_source_embeddings": 2}, "encoder/embeddings_1/weight", ANY),
        (None, {"activation": specs.Activation.Tanh}, "encoder/activation", 5),
        (None, {"multi_query_attention": True}, "multi_query_attention", True),
        (configured(add_source_bos=True), {}, "add_source_bos", True),
        (configured(decoder_start_token=None), {}, "decoder_start_token", None),
        (configured(layer_norm_epsilon="small"), {}, "layer_norm_epsilon", "small"),
    ],
)
def test_unsupported_options_are_refused(change, options, option, value, cutter, words, tmp_path):
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], change=change, **options)
    with pytest.raises(ConfigError) as caught:
        read_ctranslate2(with_sentencepiece(folder, cutter))
    if option is not None and option.startswith("..."):
        assert caught.value.option.endswith(option[3:])
    else:
        assert caught.value.option == option
    assert caught.value.value == value
    assert str(caught.value).startswith(str(folder))
    assert option is None or f"`{caught.value.option}`" in str(caught.value)


def test_missing_and_damaged_parts_are_refused(cutter, words, tmp_path):
    names = [*OPENNMT, *words]
    spec = foreign(tmp_path, names, finish=False)
    spec.validate()
    good = {name: value.array for name, value in spec.variables().items()}
    folder = with_sentencepiece(foreign(tmp_path / "model", names), cutter)
    norm, embedding = "decoder/layer_0/ffn/layer_norm/beta", "decoder/embeddings/weight"
    cases = [
        ({name: value for name, value in good.items() if name != norm}, {}, CheckpointError, f"{norm}.*missing"),
        ({**good, norm: np.ones(15, np.float32)}, {}, CheckpointError, rf"{norm}.*got \(15,\)"),
        ({**good, norm: np.ones((16, 1), np.float32)}, {}, CheckpointError, f"{norm}.*expected 1 dimensions"),
        ({**good, norm: np.ones(16, np.int8)}, {}, CheckpointError, "without a scale"),
        (
            {**good, embedding: np.ones((len(names), 16), np.int8), f"{embedding}_scale": np.ones(3, np.float32)},
            {},
            CheckpointError,
            r"scale of shape \(3,\)",
        ),
        ({**good, "decoder/layer_7/x": np.ones(2, np.float32)}, {}, ConfigError, "decoder/layer_7/x"),
        (
            {**good, "encoder/num_heads": np.int16(0)},
            {},
            ConfigError,
            r"`encoder.heads`",
        ),
        ({**good, "encoder/num_heads": np.ones(2, np.int16)}, {}, CheckpointError, "expected one number"),
        (good, {"version": 3}, CheckpointError, "version 3 .* only 4 to 6"),
        (good, {"version": 7}, CheckpointError, "version 7"),
        (good, {"kind": "WhisperSpec"}, ConfigError, "WhisperSpec"),
        (good, {"aliases": [("x", "nothing")]}, CheckpointError, "'x': invalid alias of 'nothing'"),
        (
            {**good, **{f"encoder/layer_{i}/x": np.int8(0) for i in range(3000)}},
            {},
            CheckpointError,
            "too small",
        ),
    ]
    for variables, more, kind, message in cases:
        stored(folder / "model.bin", variables, **more)
        with pytest.raises(kind, match=message):
            read_ctranslate2(folder)
    stored(folder / "model.bin", good)
    read_ctranslate2(folder)
    for text, message in (("[]", "not a list of tokens"), ('["a"]', "1 entries"), ("{", "not a list of tokens")):
        (folder / "shared_vocabulary.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_ctranslate2(folder)
    for name, message in (
        ("shared_vocabulary.json", "target_vocabulary.json is missing"),
        ("config.json", "config.json: not a JSON object"),
        ("model.bin", "model.bin is missing"),
    ):
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match=message):
            read_ctranslate2(folder)
    with raises(CheckpointError, value=tmp_path / "nowhere"):
        read_ctranslate2(tmp_path / "nowhere")


def test_the_sentencepiece_model_is_needed(cutter, words, tmp_path):
    folder = foreign(tmp_path / "model", [*OPENNMT, *words])
    with raises(CheckpointError, option="sentencepiece", value=folder):
        read_ctranslate2(folder)
    (tmp_path / "cut.spm").write_bytes(cutter)
    _, tokenizer = read_ctranslate2(folder, tmp_path / "cut.spm")
    assert tokenizer.encode(["the cat"]) != [[]]
    for path, kind in ((tmp_path / "none.spm", CheckpointError), (folder / "config.json", InputError)):
        with raises(kind):
            read_ctranslate2(folder, path)


@pytest.fixture(scope="module")
def whole(cutter, words, tmp_path_factory):
    """A valid folder, and the bytes of its weights."""
    folder = with_sentencepiece(
        foreign(tmp_path_factory.mktemp("whole") / "model", [*OPENNMT, *words], quantization="int8"), cutter
    )
    read_ctranslate2(folder)
    return folder, (folder / "model.bin").read_bytes()


@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=9))
def test_a_truncated_file_is_refused(whole, place, more):
    folder, data = whole
    (folder / "model.bin").write_bytes(data[: int(place * len(data))])
    with pytest.raises(CheckpointError):
        read_ctranslate2(folder)
    (folder / "model.bin").write_bytes(data + b"x" + more)
    with raises(CheckpointError, match="after the end"):
        read_ctranslate2(folder)


@settings(max_examples=60)
@given(data=st.binary(max_size=200), version=st.sampled_from([b"", struct.pack("<I", 6)]))
def test_a_file_of_random_bytes_is_refused(whole, data, version):
    folder, _ = whole
    (folder / "model.bin").write_bytes(version + data)
    with pytest.raises(SightlineError):
        read_ctranslate2(folder)


@settings(max_examples=40)
@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_changed_file_is_read_or_refused(whole, places):
    folder, data = whole
    changed = bytearray(data)
    for place, value in places:
        changed[int(place * len(data))] = value
    (folder / "model.bin").write_bytes(changed)
    with contextlib.suppress(SightlineError):
        read_ctranslate2(folder)


def test_no_memory_is_allocated_for_missing_data(whole):
    folder, data = whole
    begin = struct.pack("<I", 6) + struct.pack("<H", 16) + b"TransformerSpec\0" + struct.pack("<II", 7, 2**32 - 1)
    many = begin + struct.pack("<H", 2) + b"x\0" + struct.pack("<BIIBI", 2, 2**31, 2**31, 0, 2**32 - 1)
    for bad in (begin, many, begin + b"\xff\xff", data[:40] + b"\xff" * 40):
        (folder / "model.bin").write_bytes(bad)
        with pytest.raises(CheckpointError):
            read_ctranslate2(folder)


# --- Packages of Argos Translate


def packed(path, folder, cutter, about=None, more=None, root="translate-aa_bb-1_0/"):
    files = {f"model/{each.name}": each.read_bytes() for each in folder.iterdir()}
    files["metadata.json"] = json.dumps({"from_code": "aa", "to_code": "bb", **(about or {})}).encode()
    files |= {"sentencepiece.model": cutter, "stanza/tokenize.pt": b"no pickle is opened", **(more or {})}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name if name.startswith(("/", "..")) else f"{root}{name}", data)
    return path


def test_a_package_is_read_as_a_file_or_folder(cutter, words, tmp_path):
    folder = foreign(tmp_path / "model", [*OPENNMT, *words], quantization="int8")
    (tmp_path / "cut.spm").write_bytes(cutter)
    expected, _ = read_ctranslate2(folder, tmp_path / "cut.spm")
    path = packed(tmp_path / "aa_bb.argosmodel", folder, cutter)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    before = sorted(tmp_path.rglob("*"))
    for place in (path, tmp_path / "unpacked", tmp_path / "unpacked" / "translate-aa_bb-1_0"):
        model, tokenizer = read_argos(place)
        same_weights(model, expected)
        assert tokenizer.decode(tokenizer.encode(["the cat sat on"])[0]) == "the cat sat on"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_or_malicious_package_is_refused(cutter, words, tmp_path):
    folder, path = foreign(tmp_path / "model", [*OPENNMT, *words]), tmp_path / "bad.argosmodel"
    cases = [
        ({"more": {"../evil": b"x"}}, CheckpointError, "'../evil' is outside"),
        ({"more": {"/etc/evil": b"x"}}, CheckpointError, "'/etc/evil' is outside"),
        (
            {"more": {"model/model.bin": bytes(20_000_000)}},
            CheckpointError,
            "20,000,000 bytes",
        ),
        ({"more": {"metadata.json": None}}, CheckpointError, "metadata.json is missing"),
        ({"more": {"metadata.json": b"["}}, CheckpointError, r"metadata.json: not a JSON object"),
        ({"more": {"model/model.bin": None}}, CheckpointError, "model.bin is missing"),
        ({"more": {"model/model.bin": b"nonsense"}}, CheckpointError, "version"),
        ({"more": {"sentencepiece.model": None}}, CheckpointError, "sentencepiece"),
        ({"more": {"sentencepiece.model": None, "bpe.model": b"x"}}, ConfigError, "bpe.model"),
        ({"about": {"type": "sbd"}}, ConfigError, "`type`.*'sbd'"),
        ({"about": {"target_prefix": "__de__"}}, ConfigError, "`target_prefix`.*'__de__'"),
    ]
    before = None
    for more, kind, message in cases:
        packed(path, folder, cutter, **more)
        before = before or sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=message):
            read_argos(path)
    data = packed(path, folder, cutter).read_bytes()
    for bad in (b"", b"no zip", data[: len(data) // 2], data[:3000] + bytes(500) + data[3500:]):
        path.write_bytes(bad)
        with raises(CheckpointError, value=path, match="damaged"):
            read_argos(path)
    link = zipfile.ZipInfo("metadata.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with raises(CheckpointError, value="metadata.json", match="link"):
        read_argos(path)
    assert sorted(tmp_path.rglob("*")) == before
    path.unlink()
    with raises(CheckpointError, value=path, match="No such file"):
        read_argos(path)


@pytest.mark.slow
def test_a_published_package(tmp_path):
    """Argos Translate's int8 package of OPUS-MT (Chinese to English) gives the texts of CTranslate2 in float32."""
    models, data = os.environ.get("SIGHTLINE_OPUS_MT"), os.environ.get("SIGHTLINE_DATA")
    if not models or not data:
        pytest.skip("needs OPUS-MT's models; see test_opus_mt.py")
    package = Path(models) / "opus-mt-zh-en.argosmodel"
    with gzip.open(Path(data) / "tatoeba" / "en-zh.dev.tsv.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t")[1] for line in file]
    model, tokenizer = read_argos(package)
    expected = _by_argos(package, texts, tmp_path)
    for beams, theirs in expected.items():
        config = SearchConfig(beams=beams, patience=1, max_ratio=20.0, max_extra=50)
        found = find(model, tokenizer.encode(texts), config)
        ours = [tokenizer.decode(best.ids).strip() for best, *_ in found]
        same = sum(one == other for one, other in zip(ours, theirs, strict=True))
        assert same >= 0.99 * len(texts), f"with {beams} beams, {same} of {len(texts)} are the same"


def _by_argos(package, texts, folder):
    """Return translations of CTranslate2, tokenised as Argos Translate does."""
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    (model,) = folder.rglob("model.bin")
    cutter = sentencepiece.SentencePieceProcessor(model_file=str(model.parent.parent / "sentencepiece.model"))
    theirs = ctranslate2.Translator(str(model.parent), compute_type="float32", intra_threads=1)
    given = cutter.encode(texts, out_type=str)
    return {
        beams: [
            "".join(one.hypotheses[0]).replace("▁", " ").strip()
            for one in theirs.translate_batch(given, beam_size=beams, max_batch_size=32)
        ]
        for beams in (1, 2)
    }

"""Imports of Marian's files. The tests write these from Hugging Face's models of the same structure, name by name;
CTranslate2 reads them too."""

import contextlib
import functools
import io
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from sightline.errors import CheckpointError, ConfigError, InputError, SightlineError
from sightline.interop.marian import RENAMED_START, read_marian
from sightline.model_folder import load_model, load_tokenizer, save_model
from sightline.special import END, PAD, START, UNKNOWN
from support import raises

SOURCE = ["the cat sat on the mat, no less", "no dog is on 1.5 mats", "on and on the cats sat"] * 4
TARGET = ["die katze sitzt auf der matte", "kein hund ist auf den matten", "die katzen sitzen, null mal"] * 4
TRAPS = ["no", "on", "null", "1.5", "~", ">>fra<<", "<s>", '"', "'", "#", "- ", "a: b", "\\"]
"""Pieces that YAML could read as another type, and an entry <s>, which is not the start of Marian's answers."""
FORMS = {
    "tied-embeddings-all": {"tied-embeddings-all": True},
    "tied-embeddings": {"tied-embeddings": True},
    "tied-embeddings-src": {"tied-embeddings-src": True},
    "both": {"tied-embeddings": True, "tied-embeddings-src": True},
    "none": {},
}


@functools.cache
def cutter(which="source", **more):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(SOURCE if which == "source" else TARGET),
        model_writer=model,
        model_type="unigram",
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
        **more,
    )
    return model.getvalue()


def own_pieces(model):
    found = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [found.IdToPiece(i) for i in range(found.GetPieceSize())]


def entries(which):
    """A list of pieces in another order than sentencepiece's."""
    pieces = [p for p in dict.fromkeys([*own_pieces(cutter(which)), *TRAPS]) if p not in ("</s>", "<unk>")]
    random.Random(1 if which == "source" else 2).shuffle(pieces)
    return ["</s>", "<unk>", *pieces]


def write_list(path, pieces):
    """Write a list as Marian does: with quotes only if YAML needs them."""
    plain = re.compile(r"[\w▁][\w▁.]*")
    lines = (f"{p if plain.fullmatch(p) else json.dumps(p, ensure_ascii=False)}: {i}\n" for i, p in enumerate(pieces))
    path.write_text("".join(lines), "utf-8")


def sinusoids(length, width):
    """Compute sinusoids as Marian's SinusoidalPositionEmbeddings does, one number at a time."""
    table, half = np.zeros((length, width)), width // 2
    for place in range(length):
        for i in range(width):
            angle = place * np.exp(i % half * -np.log(10000) / (half - 1))
            table[place, i] = np.sin(angle) if i < half else np.cos(angle)
    return table.astype(np.float32)


def hugging_face(rows, seed=0, **more):
    """A model that computes the same as Marian, with additional rows; the last one is the zeros of padding."""
    torch.manual_seed(seed)
    options = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7}
    options |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "swish", **more}
    model = MarianMTModel(
        MarianConfig(
            vocab_size=rows + 1,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            scale_embedding=True,
            max_position_embeddings=64,
            pad_token_id=rows,
            eos_token_id=0,
            decoder_start_token_id=rows,
            forced_eos_token_id=0,
            attn_implementation="eager",
            **options,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                parameter.copy_(torch.from_numpy(sinusoids(*parameter.shape)))
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.final_logits_bias.normal_()
        model.model.decoder.embed_tokens.weight[rows] = 0
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    return model.eval()


def as_form(model, form):
    """Tie the matrices that Marian ties."""
    parts = model.model
    with torch.no_grad():
        if form in ("tied-embeddings-all", "tied-embeddings-src", "both"):
            parts.encoder.embed_tokens.weight.copy_(parts.decoder.embed_tokens.weight)
        if form in ("tied-embeddings-all", "tied-embeddings", "both"):
            model.lm_head.weight.copy_(parts.decoder.embed_tokens.weight)
    return model


def options_of(model, form, **more):
    """The options that Marian writes into its models."""
    config = model.config
    return {
        "type": "transformer",
        "dim-emb": config.d_model,
        "dim-vocabs": [config.vocab_size, config.vocab_size],
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "dec-cell-base-depth": 2,
        "layer-normalization": False,
        "right-left": False,
        "skip": False,
        "tied-embeddings": False,
        "tied-embeddings-all": False,
        "tied-embeddings-src": False,
        "transformer-aan-depth": 2,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-decoder-dim-ffn": config.decoder_ffn_dim
        if config.decoder_ffn_dim != config.encoder_ffn_dim
        else 0,
        "transformer-dim-aan": 2048,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-ffn-activation": config.activation_function,
        "transformer-ffn-depth": 2,
        "transformer-guided-alignment-layer": "last",
        "transformer-heads": config.encoder_attention_heads,
        "transformer-no-projection": False,
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-preprocess": "",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "ulr": False,
        "ulr-dim-emb": 0,
        "version": "v1.9.0",
        **FORMS[form],
        **more,
    }


def parameters_of(model, form, sources, targets, older=False):
    """Return the weights by Marian's names."""
    theirs = {name: value.numpy() for name, value in model.state_dict().items()}
    found = {"decoder_ff_logit_out_b": theirs["final_logits_bias"][:, :targets]}
    if form in ("tied-embeddings", "none"):
        found["encoder_Wemb"] = theirs["model.encoder.embed_tokens.weight"][:sources]
        found["decoder_Wemb"] = theirs["model.decoder.embed_tokens.weight"][:targets]
    else:
        found["Wemb"] = theirs["model.encoder.embed_tokens.weight"][:sources]
    if form in ("tied-embeddings-src", "none"):
        head = theirs["lm_head.weight"][:targets]
        found["decoder_ff_logit_out_W" if older else "decoder_ff_logit_out_Wt"] = head.T if older else head
    for side, depth in (("encoder", model.config.encoder_layers), ("decoder", model.config.decoder_layers)):
        for i in range(depth):
            there, here = f"{side}_l{i + 1}_", f"model.{side}.layers.{i}."
            attentions = (
                {"self": "self_attn", "context": "encoder_attn"} if side == "decoder" else {"self": "self_attn"}
            )
            for short, long in attentions.items():
                for letter, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
                    found[f"{there}{short}_W{letter}"] = theirs[f"{here}{long}.{name}.weight"].T
                    found[f"{there}{short}_b{letter}"] = theirs[f"{here}{long}.{name}.bias"][None]
                found[f"{there}{short}_Wo_ln_scale"] = theirs[f"{here}{long}_layer_norm.weight"][None]
                found[f"{there}{short}_Wo_ln_bias"] = theirs[f"{here}{long}_layer_norm.bias"][None]
            for number in "12":
                found[f"{there}ffn_W{number}"] = theirs[f"{here}fc{number}.weight"].T
                found[f"{there}ffn_b{number}"] = theirs[f"{here}fc{number}.bias"][None]
            found[f"{there}ffn_ffn_ln_scale"] = theirs[f"{here}final_layer_norm.weight"][None]
            found[f"{there}ffn_ffn_ln_bias"] = theirs[f"{here}final_layer_norm.bias"][None]
    return found


def write_weights(path, parameters, options):
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in options.items())
    about = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(path, **{"special:model.yml": about, **{n: np.ascontiguousarray(p) for n, p in parameters.items()}})


def write_folder(folder, model, form="tied-embeddings-all", separate=False, older=False, **more):
    """Write a complete folder; return the pieces of source and target."""
    sources, targets = entries("source"), entries("target" if separate else "source")
    if separate:
        write_list(folder / "opus.src.vocab.yml", sources)
        write_list(folder / "opus.trg.vocab.yml", targets)
    else:
        write_list(folder / "opus.vocab.yml", sources)
    (folder / "source.spm").write_bytes(cutter("source"))
    (folder / "target.spm").write_bytes(cutter("target"))
    parameters = parameters_of(model, form, len(sources), len(targets), older)
    write_weights(folder / "opus.npz", parameters, options_of(model, form, **more))
    return sources, targets


ROWS = max(len(entries("source")), len(entries("target")))


def same_logits(model, tokenizer, theirs, seed=0, rows=ROWS):
    """Compare our logits with Hugging Face's for random tokens, each in its own ids; answers begin with zeros."""
    torch.manual_seed(seed)
    source_own, own = torch.tensor(tokenizer.source.own_ids), torch.tensor(tokenizer.own_ids)
    source = torch.randint(UNKNOWN, tokenizer.source.size, (3, 6))
    source[:, -1] = END
    target = torch.randint(UNKNOWN, tokenizer.size, (3, 5))
    target[:, 0] = START
    layout = torch.arange(6) < torch.tensor([[6], [2], [5]])
    begun = own[target]
    begun[:, 0] = rows
    expected = theirs(source_own[source], attention_mask=layout.long(), decoder_input_ids=begun).logits
    found = model(source, target, layout)
    kept = own >= 0
    assert (found[:, :, kept] - expected[:, :, own[kept]]).abs().max() <= 1e-5
    assert (found[:, :, ~kept] < -9e3).all()


@settings(max_examples=30)
@given(
    form=st.sampled_from(list(FORMS)),
    separate=st.booleans(),
    older=st.booleans(),
    depths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    widths=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    heads=st.sampled_from([1, 2, 3]),
    d_k=st.sampled_from([2, 4, 6]),
    activation=st.sampled_from(["relu", "swish"]),
    seed=st.integers(0, 10**6),
)
@torch.no_grad()
def test_logits_are_those_of_the_reference(form, separate, older, depths, widths, heads, d_k, activation, seed):
    theirs = as_form(
        hugging_face(
            ROWS,
            seed,
            d_model=2 * heads * d_k,
            encoder_layers=depths[0],
            decoder_layers=depths[1],
            encoder_ffn_dim=widths[0],
            decoder_ffn_dim=widths[1],
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            activation_function=activation,
        ),
        form,
    )
    separate = separate and form in ("tied-embeddings", "none")
    with tempfile.TemporaryDirectory() as folder:
        sources, targets = write_folder(Path(folder), theirs, form, separate, older)
        model, tokenizer = read_marian(Path(folder))
    assert (model.config.encoder.d_ff, model.config.decoder.d_ff) == widths
    for pieces, side in ((sources, tokenizer.source), (targets, tokenizer)):
        renamed = [RENAMED_START if piece == "<s>" else piece for piece in pieces]
        assert [renamed[own] for own in side.own_ids if own >= 0] == [side.pieces([i])[0] for i in kept(side)]
    same_logits(model, tokenizer, theirs, seed)


def kept(tokenizer):
    return [i for i, own in enumerate(tokenizer.own_ids) if own >= 0]


@torch.no_grad()
def test_an_imported_model_can_be_saved_and_used(tmp_path):
    theirs = hugging_face(ROWS)
    write_folder(tmp_path, theirs, "none", separate=True)
    model, tokenizer = read_marian(tmp_path)
    assert tokenizer.source is not tokenizer
    assert not tokenizer.joint
    text = "no cat sat on the mat"
    assert tokenizer.source.decode(tokenizer.source.encode([text])[0]) == text
    assert tokenizer.source.pieces(tokenizer.source.encode([">>fra<< the cat"])[0])[0] == ">>fra<<"
    assert tokenizer.decode(tokenizer.encode(["die katze"])[0]) == "die katze"
    assert (model.decoder.embedding.tokens.weight[START] == 0).all()
    save_model(model, tmp_path / "ours", tokenizer)
    same_logits(load_model(tmp_path / "ours"), load_tokenizer(tmp_path / "ours"), theirs)


@pytest.mark.parametrize("form", ["tied-embeddings-all", "none"])
@torch.no_grad()
def test_ctranslate2_reads_the_same_model(form, tmp_path):
    """CTranslate2's own reader of Marian's files uses Hugging Face's sinusoids; here they are replaced by Marian's."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    theirs = as_form(hugging_face(ROWS, encoder_layers=2, decoder_layers=2), form)
    sources, _ = write_folder(tmp_path, theirs, form)
    model, tokenizer = read_marian(tmp_path)
    with np.load(tmp_path / "opus.npz") as archive:
        np.savez(tmp_path / "with positions.npz", **archive, Wpos=sinusoids(64, 12))
    vocabulary = str(tmp_path / "opus.vocab.yml")
    assert ctranslate2.converters.marian.load_vocab(vocabulary)[:2] == sources[:2]
    converter = ctranslate2.converters.MarianConverter(str(tmp_path / "with positions.npz"), [vocabulary, vocabulary])
    converter.convert(str(tmp_path / "converted"))
    translator = ctranslate2.Translator(str(tmp_path / "converted"), inter_threads=1, intra_threads=1)
    source, target = tokenizer.source.encode(["the cat sat on"])[0], tokenizer.encode(["katze ist auf"])[0]
    (scored,) = translator.score_batch([tokenizer.source.pieces(source)], [tokenizer.pieces(target)])
    wanted = torch.tensor([*target, END])
    logits = model(torch.tensor([[*source, END]]), torch.tensor([[START, *target]]))[0]
    found = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
    assert scored.log_probs == pytest.approx(found.tolist(), abs=2e-4)


@pytest.mark.parametrize("names", [("source.spm", "target.spm"), ("vocab.spm",)])
@torch.no_grad()
def test_sentencepiece_may_be_the_vocabulary(names, tmp_path):
    models = [cutter(which, bos_id=-1, eos_id=0, unk_id=1) for which in ("source", "target")][: len(names)]
    sizes = [len(own_pieces(model)) for model in models]
    theirs = hugging_face(max(sizes))
    for name, model in zip(names, models, strict=True):
        (tmp_path / name).write_bytes(model)
    write_weights(
        tmp_path / "model.npz", parameters_of(theirs, "none", sizes[0], sizes[-1]), options_of(theirs, "none")
    )
    model, tokenizer = read_marian(tmp_path)
    assert (tokenizer.source is tokenizer) == (len(names) == 1)
    assert tokenizer.decode(tokenizer.encode(["die katze" if len(names) == 2 else "the cat"])[0])
    same_logits(model, tokenizer, theirs, rows=max(sizes))


@torch.no_grad()
def test_a_model_without_a_bias(tmp_path):
    theirs = hugging_face(ROWS)
    write_folder(tmp_path, theirs, "none", **{"output-omit-bias": True})
    with raises(CheckpointError, value="decoder_ff_logit_out_b", match="unknown"):
        read_marian(tmp_path)
    theirs.final_logits_bias.zero_()
    parameters = parameters_of(theirs, "none", len(entries("source")), len(entries("source")))
    del parameters["decoder_ff_logit_out_b"]
    write_weights(tmp_path / "opus.npz", parameters, options_of(theirs, "none", **{"output-omit-bias": True}))
    model, tokenizer = read_marian(tmp_path)
    same_logits(model, tokenizer, theirs)
    assert (model.classifier.bias[[PAD, START]] < -9e3).all()


# --- What is refused


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path, hugging_face(ROWS), "none")
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("type", "s2s"),
        ("type", "multi-transformer"),
        ("right-left", True),
        ("ulr", True),
        ("lemma-dim-emb", 4),
        ("transformer-decoder-autoreg", "rnn"),
        ("transformer-decoder-autoreg", "average-attention"),
        ("transformer-preprocess", "n"),
        ("transformer-postprocess", "da"),
        ("transformer-postprocess", "dar"),
        ("transformer-postprocess-emb", "nd"),
        ("transformer-postprocess-top", "n"),
        ("transformer-ffn-activation", "gelu"),
        ("transformer-ffn-depth", 3),
        ("transformer-decoder-ffn-depth", 1),
        ("transformer-no-projection", True),
        ("transformer-pool", True),
        ("transformer-tied-layers", [1, 1]),
        ("transformer-train-position-embeddings", True),
        ("transformer-of-tomorrow", "yes"),
        ("dim-emb", "many"),
        ("dim-emb", 13),
        ("enc-depth", 0),
        ("dec-depth", None),
        ("transformer-heads", 5),
    ],
)
def test_unsupported_options_are_refused(option, value, tmp_path):
    write_folder(tmp_path, hugging_face(ROWS), "none", **{option: value})
    blamed = {"option": option, "value": value}
    if option == "transformer-heads":
        blamed = {"option": "d_model", "match": "heads"}
    with raises(ConfigError, **blamed) as caught:
        read_marian(tmp_path)
    assert "\n" not in str(caught.value)


def rewritten(folder, **changes):
    with np.load(folder / "opus.npz") as archive:
        found = dict(archive)
    np.savez(folder / "opus.npz", **{n: v for n, v in {**found, **changes}.items() if v is not None})


def test_weights_that_do_not_match_the_options_are_refused(folder):
    def refused(value, match, **changes):
        with np.load(folder / "opus.npz") as archive:
            before = dict(archive)
        rewritten(folder, **changes)
        with raises(CheckpointError, value=value, match=match):
            read_marian(folder)
        np.savez(folder / "opus.npz", **before)

    refused("decoder_l1_context_Wk", "missing", decoder_l1_context_Wk=None)
    refused("encoder_Wemb", "missing", encoder_Wemb=None)
    refused("Wpos", "unknown", Wpos=np.zeros((9, 12), np.float32))
    refused("encoder_l2_self_Wq", "unknown", encoder_l2_self_Wq=np.zeros((12, 12), np.float32))
    refused("encoder_l1_ffn_W1", r"\(12, 7\), got \(7, 12\)", encoder_l1_ffn_W1=np.zeros((7, 12)))
    refused("encoder_l1_self_bq", r"got \(13,\)", encoder_l1_self_bq=np.zeros(13))
    refused("encoder_Wemb", "shape", encoder_Wemb=np.zeros(4, np.float32))
    refused("encoder_l1_self_Wq", "int8", encoder_l1_self_Wq=np.zeros((12, 12), np.int8))
    refused("special:model.yml", "not found", **{"special:model.yml": None})
    for text in (b"- a\n- b\n", b"type: [", b"\xff\xfe\x00", b"!!python/object/apply:os.getcwd []", b"[" * 5000):
        refused("special:model.yml", "YAML", **{"special:model.yml": np.frombuffer(text, np.int8)})
    read_marian(folder)


def test_half_precision_is_read(folder):
    whole, _ = read_marian(folder)
    with np.load(folder / "opus.npz") as archive:
        rewritten(folder, **{n: v.astype(np.float16) for n, v in archive.items() if v.dtype == np.float32})
    half, _ = read_marian(folder)
    assert torch.allclose(half.classifier.weight, whole.classifier.weight, atol=1e-3)


def test_a_truncated_file_is_refused(folder):
    path = folder / "opus.npz"
    whole, chance = path.read_bytes(), random.Random(5)
    for length in [0, 1, 3, 4, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(40))]:
        path.write_bytes(whole[:length])
        with raises(CheckpointError, value=path, match=r"^[^\n]+\.$"):
            read_marian(folder)


def test_changed_bytes_raise_no_other_exception(folder):
    path = folder / "opus.npz"
    whole, chance = path.read_bytes(), random.Random(6)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(SightlineError):
            read_marian(folder)


class Code:
    """An object that creates a file when its pickle is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_the_file_is_not_run(folder):
    made = folder / "made"
    rewritten(folder, encoder_l1_self_Wq=np.array([Code(made)], dtype=object))
    with raises(CheckpointError, value=folder / "opus.npz", match="cannot be read"):
        read_marian(folder)
    np.array([Code(made)], dtype=object).dump(folder / "opus.npz")
    with raises(CheckpointError, value=folder / "opus.npz", match="cannot be read"):
        read_marian(folder)
    assert not made.exists()
    np.load(folder / "opus.npz", allow_pickle=True)
    assert made.exists()  # the pickle does run code


def test_a_plain_array_is_refused(folder):
    with (folder / "opus.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with raises(CheckpointError, value=folder / "opus.npz", match="cannot be read"):
        read_marian(folder)


def test_the_file_of_the_weights(folder):
    best = (folder / "opus.npz").rename(folder / "opus.npz.best-perplexity.npz")
    (folder / "opus.npz.optimizer.npz").write_bytes(b"")
    read_marian(folder)
    (folder / "opus.npz").write_bytes(b"")
    read_marian(folder)
    (folder / "opus.npz.best-bleu.npz").write_bytes(b"")
    with raises(CheckpointError, value=folder, match=r"opus.npz.best-bleu.npz, opus.npz.best-perplexity.npz"):
        read_marian(folder)
    for path in (best, folder / "opus.npz", folder / "opus.npz.best-bleu.npz"):
        path.unlink()
    with raises(CheckpointError, value=folder, match="missing"):
        read_marian(folder)
    with raises(CheckpointError, value=folder / "elsewhere", match="no such folder"):
        read_marian(folder / "elsewhere")


def test_vocabularies_that_do_not_match_the_model_are_refused(folder):
    listed, pieces = folder / "opus.vocab.yml", entries("source")

    def refused(match, error=CheckpointError):
        with raises(error, match=f"^[^\n]*{match}[^\n]*$"):
            read_marian(folder)

    for some in (pieces[:-1], [*pieces, "more"]):
        write_list(listed, some)
        refused(f"{len(some)} entries, the model {len(pieces)}")
    for text in ("- a\n- b\n", "a: [1]\n", "a: b\n", "a: {", "\x00", "a", ""):
        listed.write_text(text)
        refused("opus.vocab.yml: not a vocabulary")
    listed.write_text("a: 0\nb: 2\n")
    refused("opus.vocab.yml: 2 entries, and none with id 1")
    write_list(listed, ["end", *pieces[1:]])
    refused("</s>", InputError)
    write_list(listed, pieces)
    write_list(folder / "other.vocab.yml", pieces)
    refused("2 files")
    (folder / "other.vocab.yml").unlink()
    (folder / "source.spm").write_bytes(b"nothing")
    refused("source.spm", InputError)
    (folder / "source.spm").unlink()
    refused("source.spm is missing")
    listed.unlink()
    refused("source.spm is missing")


def test_one_embedding_needs_one_vocabulary(tmp_path):
    write_folder(tmp_path, hugging_face(ROWS), "tied-embeddings-all")
    (tmp_path / "opus.vocab.yml").unlink()
    write_list(tmp_path / "a.src.vocab.yml", entries("source"))
    write_list(tmp_path / "a.trg.vocab.yml", entries("target"))
    with raises(CheckpointError, value=str(tmp_path / "a.trg.vocab.yml"), match="share an embedding"):
        read_marian(tmp_path)


def test_a_missing_package_is_reported(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with raises(InputError, value="yaml", match="pip install"):
        read_marian(folder)

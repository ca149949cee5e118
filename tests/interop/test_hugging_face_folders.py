"""Imports and exports of Hugging Face folders keep weights, tokens and answers."""

import io
import json
import os
import pickle
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    PegasusConfig,
)

from searching import find
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.interop.hugging_face import DEFAULTS
from sightline.interop.hugging_face_files import read_hugging_face, write_hugging_face
from sightline.special import END, PAD, START, UNKNOWN
from support import difference, raises

ENGLISH = [pair.source for pair in generate("train", 400)]
FRENCH = [pair.target for pair in generate("train", 400)]


def trained(lines, size, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, minloglevel=2, **options
    )
    return model.getvalue()


SOURCE_MODEL, TARGET_MODEL = trained(ENGLISH, 90), trained(FRENCH, 110, model_type="bpe")


def entries(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]


def numbered(pieces, separate):
    """As OPUS-MT numbers them: the end, unknown, the pieces, padding last; or before them, so that it has one number in
    both vocabularies."""
    words = sorted({*pieces} - {"<s>", "</s>", "<unk>"})
    words = ["<pad>", *words] if separate else [*words, "<pad>"]
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *words])}


def write_vocabulary(folder, lists):
    (folder / "source.spm").write_bytes(SOURCE_MODEL)
    (folder / "target.spm").write_bytes(TARGET_MODEL)
    for name, numbers in zip(("vocab.json", "target_vocab.json"), lists, strict=False):
        (folder / name).write_text(json.dumps(numbers))
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": len(lists) > 1}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def marian(folder, seed=1, separate=False, ending=2.0, **options):
    """Write a random translator that ends its answers soon."""
    torch.manual_seed(seed)
    one, other = entries(SOURCE_MODEL), entries(TARGET_MODEL)
    lists = [numbered(pieces, separate) for pieces in ([one, other] if separate else [[*one, *other]])]
    pad = lists[-1]["<pad>"]
    config = {
        "vocab_size": len(lists[0]),
        "decoder_vocab_size": len(lists[-1]),
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 30,
        "share_encoder_decoder_embeddings": not separate,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
        **options,
    }
    model = MarianMTModel(MarianConfig(**config))
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.model.decoder.embed_tokens.weight[pad] = 0
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, 0] += ending
    model.save_pretrained(folder)
    write_vocabulary(folder, lists)
    return model.eval()


@st.composite
def configurations(draw):
    d_k = draw(st.integers(1, 6))
    heads = st.sampled_from([1, 2, 3, 6])
    return {
        "d_model": 6 * d_k,
        "encoder_layers": draw(st.integers(1, 4)),
        "decoder_layers": draw(st.integers(1, 4)),
        "encoder_attention_heads": draw(heads),
        "decoder_attention_heads": draw(heads),
        "encoder_ffn_dim": draw(st.integers(1, 50)),
        "decoder_ffn_dim": draw(st.integers(1, 50)),
        "activation_function": draw(st.sampled_from(["swish", "gelu", "relu", "gelu_new", "silu"])),
        "scale_embedding": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": draw(st.sampled_from([64, 512])),
    }


@torch.no_grad()
def logits(model, tokenizer, theirs, sources, answers):
    """Return the log-probabilities of each answer by both programs, in native ids."""
    own = SimpleNamespace(source=tokenizer.source.own_ids, target=tokenizer.own_ids)
    start = theirs.config.decoder_start_token_id
    there = [i for i, number in enumerate(own.target) if number >= 0]
    for source, answer in zip(sources, answers, strict=True):
        ours = model(torch.tensor([[*source, END]]), torch.tensor([[START, *answer]]))[0][:, there]
        given = torch.tensor([[own.source[i] for i in [*source, END]]])
        said = torch.tensor([[start, *(own.target[i] for i in answer)]])
        expected = theirs(given, decoder_input_ids=said).logits[0]
        yield ours, expected[:, [own.target[i] for i in there]]


def generated(theirs, tokenizer, source, beams, longest):
    own = tokenizer.own_ids
    never = {own[i] for i in (PAD, START, UNKNOWN) if own[i] >= 0} | {theirs.config.decoder_start_token_id}
    found = theirs.generate(
        torch.tensor([[tokenizer.source.own_ids[i] for i in [*source, END]]]),
        num_beams=beams,
        do_sample=False,
        early_stopping=beams > 1,
        length_penalty=1.0,
        max_new_tokens=longest,
        max_length=None,
        suppress_tokens=sorted(never),
        bad_words_ids=None,
    )
    ids = {number: i for i, number in enumerate(own) if number >= 0}
    return [ids[i] for i in found[0, 1:].tolist()]


def same_answers(model, tokenizer, theirs, sources, beams):
    """How many answers were compared: those that are over before the limit, where theirs may be cut off and ours
    must end."""
    count = 0
    for source, (best, *_) in zip(sources, find(model, sources, SearchConfig(beams=beams, patience=1)), strict=True):
        limit = 2 * (len(source) + 1) + 10
        found = generated(theirs, tokenizer, source, beams, limit)
        if len(best.ids) < limit - 1 and found[-1] == END:
            assert found == [*best.ids, END]
            count += 1
    return count


ANY = {"config": configurations(), "separate": st.booleans(), "seed": st.integers(0, 10**6)}


@settings(max_examples=5)
@given(**ANY)
def test_round_trip(tmp_path_factory, config, separate, seed):
    there_and_back(tmp_path_factory, config, separate, seed)


@pytest.mark.slow
@settings(max_examples=25)
@given(**ANY)
def test_round_trip_of_more_models(tmp_path_factory, config, separate, seed):
    there_and_back(tmp_path_factory, config, separate, seed)


def there_and_back(tmp_path_factory, config, separate, seed):
    folder, back = tmp_path_factory.mktemp("marian"), tmp_path_factory.mktemp("back")
    theirs = marian(folder, seed, separate, **config)
    model, tokenizer = read_hugging_face(folder)
    assert tokenizer.joint == (not separate)
    sources = tokenizer.source.encode(ENGLISH[:4])
    answers = tokenizer.encode(FRENCH[:4])
    for ours, expected in logits(model, tokenizer, theirs, sources, answers):
        assert difference(ours, expected) <= 1e-5
    for beams in (1, 4):
        same_answers(model, tokenizer, theirs, sources[:2], beams)

    write_hugging_face(model, tokenizer, back)
    again = AutoModelForSeq2SeqLM.from_pretrained(back).eval()
    assert again.config.vocab_size == theirs.config.vocab_size
    for source, answer in zip(sources[:2], answers, strict=False):
        given = torch.tensor([[tokenizer.source.own_ids[i] for i in [*source, END]]])
        said = torch.tensor([[theirs.config.decoder_start_token_id, *(tokenizer.own_ids[i] for i in answer)]])
        with torch.no_grad():
            before, after = (one(given, decoder_input_ids=said).logits for one in (theirs, again))
        assert difference(after, before) <= 1e-5
        for beams in (1, 4):
            texts = [generated(one, tokenizer, source, beams, 20) for one in (theirs, again)]
            assert texts[0] == texts[1]
    for name in ("vocab.json", "target_vocab.json"):
        if (folder / name).exists():
            assert json.loads((back / name).read_text()) == json.loads((folder / name).read_text())


def test_answers_are_those_of_generate(tmp_path):
    compared = 0
    for seed, ending in [(1, 6.0), (3, 6.0), (6, 6.0), (1, 7.0), (3, 7.0)]:
        theirs = marian(tmp_path, seed, ending=ending)
        model, tokenizer = read_hugging_face(tmp_path)
        sources = tokenizer.source.encode(ENGLISH[:8])
        compared += sum(same_answers(model, tokenizer, theirs, sources, beams) for beams in (1, 4))
    assert compared >= 10


STRANGE = [
    "The animal didn't cross the street.",
    "  two  spaces ",
    "unknown 漢字 and \U0001f600",
    "tab\tand\nline",
    "",
]


def test_the_tokenizer_agrees_with_hugging_face(tmp_path):
    marian(tmp_path)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    _, ours = read_hugging_face(tmp_path)
    for text in [*STRANGE, *ENGLISH[:50]]:
        (ids,) = ours.source.encode([text])
        assert [ours.own_ids[i] for i in ids] == theirs(text)["input_ids"][:-1]
        assert len(ours.source.encode_with_spans([text])[0][1]) == len(ids)
    for text in [*STRANGE, *FRENCH[:50]]:
        (ids,) = ours.encode([text])
        own = [ours.own_ids[i] for i in ids]
        assert own == theirs(text_target=text)["input_ids"][:-1]
        if "⁇" not in ours.decode(ids):  # they write <unk>
            assert ours.decode(ids) == theirs.decode(own, skip_special_tokens=True)


def test_language_codes_are_tokens(tmp_path):
    marian(tmp_path)
    numbers = json.loads((tmp_path / "vocab.json").read_text())
    (old,) = (piece for piece, number in numbers.items() if number == 5)
    numbers[">>fra<<"] = numbers.pop(old)
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    theirs, (_, ours) = MarianTokenizer.from_pretrained(tmp_path), read_hugging_face(tmp_path)
    for text in (">>fra<< The dog", ">>fra<<The dog", ">>deu<< The dog", "The >>fra<< dog", ">>fra<<"):
        (ids,) = ours.source.encode([text])
        assert [ours.own_ids[i] for i in ids][:1] == theirs(text)["input_ids"][:1]
        assert len(ours.source.encode_with_spans([text])[0][1]) == len(ids)
    assert ours.source.pieces(ours.source.encode([">>fra<< The"])[0])[0] == ">>fra<<"


def test_special_tokens_cannot_be_written_as_text(tmp_path):
    marian(tmp_path)
    _, ours = read_hugging_face(tmp_path)
    (ids,) = ours.source.encode(["</s> <pad> <s>"])
    assert not {PAD, START, END} & {*ids}


def test_default_values_are_those_of_hugging_face():
    kinds = {"marian": MarianConfig(), "pegasus": PegasusConfig(), "bert": BertConfig(), "gpt2": GPT2Config()}
    assert set(kinds) == set(DEFAULTS)
    for kind, fields in DEFAULTS.items():
        for field, value in fields.items():
            expected = getattr(kinds[kind], field)
            assert value == expected or (field == "decoder_vocab_size" and expected == kinds[kind].vocab_size)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("parts", [False, True])
def test_weights_in_one_file_or_several(tmp_path, pickled, parts):
    theirs = marian(tmp_path)
    expected, _ = read_hugging_face(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    name = "pytorch_model.bin" if pickled else "model.safetensors"
    names = sorted(weights)
    files = {f"part-{i}.{name}": names[i::3] for i in range(3)} if parts else {name: names}
    for file, there in files.items():
        some = {each: weights[each] for each in there}
        torch.save(some, tmp_path / file) if pickled else save_file(some, tmp_path / file)
    if parts:
        where = {each: file for file, some in files.items() for each in some}
        (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": where}))
    model, tokenizer = read_hugging_face(tmp_path)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)
    assert theirs.config.vocab_size == tokenizer.size - 1  # and the start


@pytest.mark.parametrize("whole", [False, True])
@torch.no_grad()
def test_bert(tmp_path, whole):
    torch.manual_seed(2)
    vocabulary = ["[PAD]", "x", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    size = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **size)
    theirs = (BertForMaskedLM if whole else BertModel)(config).eval()
    theirs.save_pretrained(tmp_path)
    model, tokenizer = read_hugging_face(tmp_path)
    (ids,) = tokenizer.encode(["a b aab h"])
    ids = [START, *ids, END]
    own = torch.tensor([[tokenizer.own_ids[i] for i in ids]])
    if whole:
        expected = theirs(own).logits[0][:, tokenizer.own_ids]
        assert difference(model(torch.tensor([ids]))[0], expected) <= 1e-5
    else:
        assert difference(model.encoder(torch.tensor([ids])), theirs(own).last_hidden_state) <= 1e-5


@torch.no_grad()
def test_gpt2(tmp_path):
    torch.manual_seed(3)
    tokens = ["!", *"abc", "ab", "Ġa", "Ġ", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    size = {"n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 16}
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokens), bos_token_id=7, eos_token_id=7, **size)).eval()
    theirs.save_pretrained(tmp_path)
    model, tokenizer = read_hugging_face(tmp_path)
    (ids,) = tokenizer.encode(["ab a c!"])
    own = [tokenizer.own_ids[i] for i in ids]
    assert own == [4, 5, 6, 3, 0]
    ours = model(torch.tensor([[START, *ids]])).log_softmax(-1)[0]
    expected = theirs(torch.tensor([[7, *own]])).logits.log_softmax(-1)[0]
    native = [i for i in range(tokenizer.size) if tokenizer.own_ids[i] >= 0 and i != START]
    assert difference(ours[:, native], expected[:, [tokenizer.own_ids[i] for i in native]]) <= 1e-5
    assert float(ours[:, [PAD, START, UNKNOWN]].exp().max()) == 0  # tokens of our vocabulary only


class Evil:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without(name):
    return lambda folder: (folder / name).unlink()


def changed(**fields):
    def change(folder):
        about = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**about, **fields}))

    return change


def other_weights(change):
    def alter(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return alter


def with_code(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Evil(folder / "was-run")}))


def with_code_in_a_zip(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Evil(folder / "was-run")}, folder / "pytorch_model.bin")


def written(name, data):
    return lambda folder: (folder / name).write_bytes(data)


NORM = "model.encoder.layers.0.final_layer_norm.weight"


@pytest.mark.parametrize(
    ("damage", "error", "option", "word"),
    [
        (truncated, CheckpointError, None, "model.safetensors"),
        (without("model.safetensors"), CheckpointError, None, "no weights"),
        (without("vocab.json"), CheckpointError, None, "vocab.json: cannot be read"),
        (without("source.spm"), CheckpointError, None, "source.spm: cannot be read"),
        (without("config.json"), CheckpointError, None, "config.json: cannot be read"),
        (written("config.json", b"[1, 2]"), CheckpointError, None, "config.json: not a JSON object"),
        (written("config.json", b'{"a": '), CheckpointError, None, "config.json: not a JSON object"),
        (written("vocab.json", b'{"a": "b"}'), CheckpointError, None, "vocab.json: not a vocabulary"),
        (written("vocab.json", b'{"a": 1000}'), CheckpointError, None, "vocab.json: an id"),
        (written("vocab.json", b'{"a": 0}'), InputError, None, "</s>"),
        (written("target.spm", b"none"), InputError, None, "target.spm"),
        (changed(model_type="t5"), ConfigError, "model_type", "t5"),
        (changed(model_type=None), ConfigError, "model_type", "None"),
        (changed(activation_function="tanh"), ConfigError, "activation_function", "tanh"),
        (changed(normalize_before=True), ConfigError, "normalize_before", "True"),
        (changed(encoder_layers=1), CheckpointError, None, "unknown weight 'model.encoder.layers.1"),
        (changed(encoder_layers=3), CheckpointError, None, "missing weight 'model.encoder.layers.2"),
        (changed(encoder_layers="two"), CheckpointError, None, "configuration"),
        (changed(encoder_ffn_dim=21), CheckpointError, None, "feed_forward.inner.weight"),
        (changed(d_model=25), ConfigError, "d_model", "25"),
        (changed(eos_token_id=7), ConfigError, "eos_token_id", "7"),
        (other_weights(lambda weights: weights.pop(NORM)), CheckpointError, None, f"missing weight '{NORM}'"),
        (
            other_weights(lambda weights: weights.update(new=torch.ones(1))),
            CheckpointError,
            None,
            "unknown weight 'new'",
        ),
        (other_weights(lambda weights: weights.update({NORM: torch.ones(5)})), CheckpointError, None, "shape"),
        (with_code, CheckpointError, None, "could run code"),
        (with_code_in_a_zip, CheckpointError, None, "could run code"),
    ],
)
def test_a_damaged_folder_is_refused_and_nothing_is_run_or_written(tmp_path, damage, error, option, word):
    folder = tmp_path / "marian"
    marian(folder)
    damage(folder)
    before = sorted(folder.iterdir())
    with raises(error, option=option, match=word) as caught:
        read_hugging_face(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert sorted(folder.iterdir()) == before

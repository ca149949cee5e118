"""Masks that are filled in as by Hugging Face's BERT and its tokenizer."""

import pytest
import tokenizers
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from sightline.data.builtin import generate
from sightline.engine import Reader
from sightline.interop.hugging_face_files import read_hugging_face
from support import difference

LINES = [text for pair in generate("train", 500) for text in (pair.source, pair.target)]
TEXTS = [
    "The [MASK] sleeps.",
    "[MASK] dog didn't cross the [MASK], because it was tired.",
    "The dog[MASK]ing the cat [MASK][MASK] (the [MASK]).",
    "Größe [MASK] 漢字, 🙂 [SEP] [mask]",
    "[MASK]",
]


@pytest.fixture(scope="module", params=["vocab.txt", "tokenizer.json"])
def both(request, tmp_path_factory):
    """A BERT with random weights and its tokenizer, and our reader of the same files."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("bert")
    kind = tokenizers.Tokenizer(tokenizers.models.WordPiece())
    kind.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    kind.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    kind.train_from_iterator([*LINES, "[ ] ( ) sep mask"], trainer)
    kind.model.save(str(folder))
    tokenizer = BertTokenizer.from_pretrained(folder)
    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **size)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    if request.param == "tokenizer.json":
        tokenizer.save_pretrained(folder)
        (folder / "vocab.txt").unlink(missing_ok=True)
    assert (folder / request.param).exists()
    ours, vocabulary = read_hugging_face(folder)
    return tokenizer, model, Reader(ours, vocabulary)


@torch.no_grad()
def test_masks_are_filled_in_as_by_hugging_face(both):
    tokenizer, model, reader = both
    own = reader.tokenizer.own_ids
    assert own[reader.tokenizer.mask_id] == tokenizer.mask_token_id
    for text, found in zip(TEXTS, reader.fill(TEXTS), strict=True):
        encoded = tokenizer(text.replace("[SEP]", "[ SEP ]"), return_tensors="pt")  # which is text to us
        assert [own[token] for token in found.ids] == encoded.input_ids[0].tolist()
        logits = model(**encoded).logits[0]
        assert difference(reader.trace(found)["logits"].values, logits[:, own]) <= 1e-4
        masks = (encoded.input_ids[0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
        assert [mask.position for mask in found.masks] == masks
        for mask in found.masks:
            best = logits[mask.position].softmax(-1).topk(5)
            assert [own[one.id] for one in mask.candidates] == best.indices.tolist()
            assert [one.probability for one in mask.candidates] == pytest.approx(best.values.tolist(), abs=1e-5)
            assert [one.token for one in mask.candidates] == tokenizer.convert_ids_to_tokens(best.indices)


def test_the_text_has_the_words_that_hugging_face_decodes(both):
    tokenizer, _, reader = both
    for text in ["the [MASK] sleeps", "[MASK] the dog", "the dog [MASK]"]:
        (found,) = reader.fill(text, n=1)
        (mask,), ids = found.masks, [*found.ids]
        ids[mask.position] = mask.candidates[0].id
        assert found.text == tokenizer.decode([reader.tokenizer.own_ids[i] for i in ids[1:-1]])

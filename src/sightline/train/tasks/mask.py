"""Masked words: an encoder reads plain text with masks and predicts the words below them (BERT)."""

from dataclasses import replace

from sightline.data.batches import MakeBatch, MaskedBatches
from sightline.text.tokenizer import MASK_NAMES, Tokenizer
from sightline.train.tasks.write import WRITE


def batches(tokenizer: Tokenizer) -> MakeBatch:
    """Return batches with the mask of the vocabulary."""
    return MaskedBatches(tokenizer.mask_id, tokenizer.size)


MASK = replace(WRITE, name="read", architectures=("encoder-only",), special=MASK_NAMES[1:], batches=batches)

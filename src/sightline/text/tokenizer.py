"""Sub-word tokens by sentencepiece. Text goes in raw and comes out raw; nobody tokenises by hand.

One vocabulary serves source and target. Letters it has never seen are written as bytes, so nothing is unknown.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from sightline.errors import InputError

__all__ = ["END", "PAD", "START", "UNKNOWN", "Tokenizer", "suggest_vocab_size"]

PAD, START, END, UNKNOWN = 0, 1, 2, 3


class Tokenizer:
    """A sentencepiece model: raw text to ids, and back."""

    def __init__(self, model: bytes, where: str = "the tokenizer") -> None:
        self.model = model
        self._pieces = sentencepiece.SentencePieceProcessor()
        try:
            self._pieces.LoadFromSerializedProto(model)
        except RuntimeError:
            raise InputError(f"{where}: this is not a sentencepiece model.") from None

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn a byte-pair vocabulary of at most this size from raw text. A small corpus gives a smaller one."""
        sentences = [line for line in lines if line.strip()]
        if not sentences:
            raise InputError("there is no text to learn a vocabulary from.")
        letters = len(set().union(*map(set, sentences)))
        least = 4 + 256 + letters  # special tokens, bytes, letters
        if vocab_size < least:
            raise InputError(f"a vocabulary of {vocab_size} is too small for this text, which needs at least {least}.")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=1_000_000,
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            minloglevel=2,
        )
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a sentencepiece model file."""
        try:
            return cls(Path(path).read_bytes(), str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}.") from None

    @property
    def size(self) -> int:
        """Entries of the vocabulary."""
        return int(self._pieces.GetPieceSize())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start and end."""
        return [list(ids) for ids in self._pieces.Encode(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; padding, start and end say nothing."""
        return str(self._pieces.Decode([i for i in map(int, ids) if i not in (PAD, START, END)]))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each id is written in the vocabulary; ▁ stands for a space."""
        return [str(self._pieces.IdToPiece(int(i))) for i in ids]


def suggest_vocab_size(sentences: int) -> int:
    """A vocabulary that fits the corpus: more text can teach more words."""
    for limit, size in ((20_000, 4_000), (200_000, 10_000), (1_000_000, 16_000)):
        if sentences <= limit:
            return size
    return 32_000

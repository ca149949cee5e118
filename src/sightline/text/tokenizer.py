"""Sub-word tokens: raw text goes in, raw text comes out; nobody tokenises by hand.

Our own vocabularies are sentencepiece's: one serves source and target, and letters it has never seen are written as
bytes, so nothing is unknown. Those of BERT (WordPiece) and GPT-2 (byte-level BPE) are read as well, and those of
Marian's translators, where sentencepiece cuts a text and a list says which piece has which number. Whatever a
vocabulary's own numbers are, ours begin with the same four special tokens; its other entries follow in its own order.
"""

import base64
import io
import json
import random
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from sightline.errors import InputError
from sightline.files import read_json_object
from sightline.special import END, PAD, START, UNKNOWN

__all__ = ["Tokenizer", "suggest_vocab_size", "with_end"]

NAMES = "<pad>", "<s>", "</s>", "<unk>"  # where a vocabulary has none of its own
FILE, SOURCE_FILE = "tokenizer.model", "source-tokenizer.model"

SAMPLE_LINES = 1_000_000
SAMPLE_TEXT = 100_000_000  # characters
FEW = 64  # texts; the library starts threads for every list, also if it shall be one, which takes longer than these
SEEDING = threading.Lock()  # sentencepiece has one seed for the whole process


class Special(NamedTuple):
    """The vocabulary's own ids of the four special tokens; -1 where it has none."""

    pad: int
    start: int
    end: int
    unknown: int


class Vocabulary(Protocol):
    """What a tokenizer needs from a library, in the vocabulary's own ids."""

    special: Special
    sentencepiece: bytes | None

    @property
    def ids(self) -> Sequence[int]: ...
    def encode(self, texts: list[str]) -> list[list[int]]: ...
    def spans(self, texts: list[str]) -> list[list[tuple[int, int]]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def piece(self, own: int) -> str: ...


class Tokenizer:
    """Raw text to ids, and back. Where a translator cuts its sources by other rules than its targets, this is for
    targets, and `source` for sources."""

    def __init__(self, model: bytes, where: str = "the tokenizer", source: "Tokenizer | None" = None) -> None:
        self._where = where
        self.model = model
        """All there is to one side: `Tokenizer(model)` is the same one again."""
        self.source = self if source is None else source
        """The tokenizer of sources; most often this one."""
        self._vocabulary = _vocabulary(model, where)
        special = self._vocabulary.special
        self.own_ids = [*special, *(i for i in self._vocabulary.ids if i not in special)]
        """For each id here the vocabulary's own, as weights trained elsewhere have it; -1 where it has none."""
        self._ids = {own: ours for ours, own in enumerate(self.own_ids)}
        self._alike = self.own_ids == list(range(len(self.own_ids)))

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn a byte-pair vocabulary of at most this size from raw text. A small corpus gives a smaller one.

        The text may be larger than memory: of more than 1,000,000 lines or 100,000,000 characters, lines are drawn by
        chance, each as likely as any other. The same text always gives the same vocabulary.
        """
        sample = _sample(lines)
        if not sample:
            raise InputError("there is no text to learn a vocabulary from.")
        letters: set[str] = set()
        for line in sample:
            letters.update(line)
        least = 4 + 256 + len(letters)  # special tokens, bytes, letters
        if vocab_size < least:
            raise InputError(f"a vocabulary of {vocab_size} is too small for this text, which needs at least {least}.")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(sample),
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
    def of_pieces(cls, pieces: Sequence[str], sentencepiece_model: bytes, where: str = "the tokenizer") -> "Tokenizer":
        """One where a sentencepiece model cuts the text, and the place of a piece in a list is its number. A piece that
        is not in the list is unknown."""
        model = {"pieces": list(pieces), "sentencepiece": base64.b64encode(sentencepiece_model).decode()}
        return cls(json.dumps(model, ensure_ascii=False).encode(), where)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a vocabulary: a sentencepiece model; Hugging Face's `tokenizer.json`; BERT's `vocab.txt`; GPT-2's
        `vocab.json` with its `merges.txt` beside it; or a folder that has one of the last three."""
        path = Path(path)
        try:
            if path.is_dir():
                path = _in_folder(path)
            if path.suffix == ".txt":
                return cls(_word_pieces(path), str(path))
            if path.suffix == ".json" and not isinstance(
                read_json_object(path, error=InputError).get("model"), dict
            ):  # it may be a word
                return cls(_byte_pairs(path), str(path))
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise InputError(f"{error.filename or path}: cannot be read: {error.strerror}.") from None

    @property
    def files(self) -> dict[str, bytes]:
        """What a model's folder has of it."""
        source = {} if self.source is self else {SOURCE_FILE: self.source.model}
        return {FILE: self.model, **source}

    @property
    def sentencepiece(self) -> bytes | None:
        """The sentencepiece model that cuts the text, if one does."""
        return self._vocabulary.sentencepiece

    @property
    def joint(self) -> bool:
        """Whether sources and targets have the same numbers for the same pieces."""
        return self.source is self or self.source.all_pieces() == self.all_pieces()

    @property
    def size(self) -> int:
        """Entries of the vocabulary."""
        return len(self.own_ids)

    def encode(self, texts: Sequence[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """The ids of each text, without start and end.

        With `dropout` (BPE-dropout, Provilkov et al. 2020) each merge of two pieces is left out with this probability,
        so that a model meets words in many spellings. The same texts, dropout and seed give the same ids.
        """
        if not dropout:
            found = self._vocabulary.encode(list(texts))
        elif not 0 < dropout <= 1:
            raise InputError(f"a BPE-dropout of {dropout} is no probability; it must be between 0 and 1.")
        elif isinstance(self._vocabulary, SentencePiece) and self._vocabulary.is_byte_pairs:
            found = self._vocabulary.encode_with_dropout(list(texts), dropout, seed)
        else:
            raise InputError(f"{self._where}: BPE-dropout needs a sentencepiece model of byte pairs; this is none.")
        return found if self._alike else [list(map(self._ids.__getitem__, ids)) for ids in found]

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where each token of `encode` begins and ends in its text, in characters. A space before a word may be in its
        span; of a letter that is written as bytes, only the last byte has it."""
        return self._vocabulary.spans(list(texts))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; padding, start and end say nothing."""
        own = [self.own_ids[i] for i in map(int, ids) if i not in (PAD, START, END)]
        return self._vocabulary.decode([i for i in own if i >= 0])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """How each id is written in the vocabulary; ▁ (in byte-level BPE Ġ) stands for a space."""
        return [self._vocabulary.piece(self.own_ids[i]) if self.own_ids[i] >= 0 else NAMES[i] for i in map(int, ids)]

    def all_pieces(self) -> list[str]:
        """Those of the whole vocabulary."""
        return self.pieces(range(self.size))


def with_end(source: Sequence[int], end: bool) -> list[int]:
    """What a model reads of a source: its ids and the end. `end`: whether the model knows sources by their end
    (`ModelConfig.source_end`); if not, only a source of nothing has one, so that there is something to read."""
    return [*source, END] if end or not source else list(source)


def suggest_vocab_size(sentences: int) -> int:
    """A vocabulary that fits the corpus: more text can teach more words."""
    for limit, size in ((20_000, 4_000), (200_000, 10_000), (1_000_000, 16_000)):
        if sentences <= limit:
            return size
    return 32_000


class SentencePiece:
    """A vocabulary of the library sentencepiece."""

    def __init__(self, model: bytes, where: str) -> None:
        self._processor = found = sentencepiece.SentencePieceProcessor()
        self.sentencepiece: bytes | None = model
        try:
            found.LoadFromSerializedProto(model)
        except RuntimeError:
            raise InputError(f"{where}: this is not a sentencepiece model.") from None
        self.ids = range(found.GetPieceSize())
        self.special = Special(found.pad_id(), found.bos_id(), found.eos_id(), found.unk_id())

    @property
    def is_byte_pairs(self) -> bool:
        """Byte pairs are scored by when they were merged, 0, -1, -2, ...; other kinds by how probable they are."""
        return all(self._processor.GetScore(i).is_integer() for i in self.ids)

    def encode(self, texts: list[str]) -> list[list[int]]:
        encode = self._processor.Encode
        return [encode(text) for text in texts] if len(texts) < FEW else list(encode(texts))

    def spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        return [self._processor.Encode(text, return_type="offset_mapping")["offsets"] for text in texts]

    def encode_with_dropout(self, texts: list[str], dropout: float, seed: int) -> list[list[int]]:
        """On one thread: which of several draws what would be left to chance."""
        with SEEDING:
            sentencepiece.set_random_generator_seed(seed)
            return list(
                self._processor.Encode(texts, enable_sampling=True, alpha=dropout, nbest_size=-1, num_threads=1)
            )

    def decode(self, ids: list[int]) -> str:
        return str(self._processor.Decode(ids))

    def piece(self, own: int) -> str:
        return str(self._processor.IdToPiece(own))


class HuggingFace:
    """A vocabulary of the library tokenizers, as its JSON."""

    sentencepiece: bytes | None = None

    def __init__(self, model: bytes, where: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(model)
        except Exception:  # the library raises nothing else
            raise InputError(f"{where}: this is no vocabulary that the library tokenizers can read.") from None
        self._tokenizer.encode_special_tokens = True  # who writes "[SEP]" means five letters
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.ids = sorted(self._tokenizer.get_vocab().values())
        self.special = Special(
            pad=self._first("[PAD]", "<pad>"),
            start=self._first("[CLS]", "<s>", "<|endoftext|>"),
            end=self._first("[SEP]", "</s>", "<|endoftext|>"),
            unknown=self._first("[UNK]", "<unk>"),
        )

    def _first(self, *names: str) -> int:
        found = (self._tokenizer.token_to_id(name) for name in names)
        return next((own for own in found if own is not None), -1)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        return [found.offsets for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def piece(self, own: int) -> str:
        return str(self._tokenizer.id_to_token(own))


class ListedPieces:
    """Pieces that sentencepiece cuts, by their places in a list."""

    def __init__(self, model: dict[str, Any], where: str) -> None:
        try:
            self.sentencepiece: bytes | None = base64.b64decode(model["sentencepiece"], validate=True)
            processor = SentencePiece(self.sentencepiece, where)._processor
            self._pieces = [str(piece) for piece in model["pieces"]]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{where}: this is no vocabulary of listed pieces.") from None
        self._processor, self.ids = processor, range(len(self._pieces))
        self._own = {piece: i for i, piece in enumerate(self._pieces)}
        self._codes = any(piece.startswith(">>") and piece.endswith("<<") for piece in self._pieces)
        pad, start, end, unknown = (self._own.get(name, -1) for name in NAMES)
        if end < 0 or unknown < 0:
            raise InputError(f"{where}: the vocabulary has no entry {NAMES[END] if end < 0 else NAMES[UNKNOWN]}.")
        self.special = Special(self._own.get("<blank>", -1) if pad < 0 else pad, start, end, unknown)

    def encode(self, texts: list[str]) -> list[list[int]]:
        codes = [self._code(text) for text in texts]
        rest = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
        found = [self._processor.Encode(text, out_type=str) for text in rest]
        every = ([code, *pieces] if code else pieces for code, pieces in zip(codes, found, strict=True))
        return [[self._own.get(piece, self.special.unknown) for piece in pieces] for pieces in every]

    def spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        found = []
        for text in texts:
            begin = len(self._code(text))
            rest = self._processor.Encode(text[begin:], return_type="offset_mapping")
            spans = [(begin + first, begin + last) for first, last in rest["offsets"]]
            found.append([(0, begin), *spans] if begin else spans)
        return found

    def _code(self, text: str) -> str:
        """What many translators are told their language by, >>fra<< before the text, where the vocabulary has such
        pieces. One that it has not is unknown."""
        return text[: text.find("<<") + 2] if self._codes and text.startswith(">>") and "<<" in text else ""

    def decode(self, ids: list[int]) -> str:
        # A piece that sentencepiece does not know (there may be one for sources only) it leaves as it is written.
        text = str(self._processor.DecodePieces(list(map(self.piece, ids))))
        return text.replace("▁", " ").removeprefix(" ") if "▁" in text else text

    def piece(self, own: int) -> str:
        return self._pieces[own]


def _vocabulary(model: bytes, where: str) -> Vocabulary:
    if not model.lstrip().startswith(b"{"):
        return SentencePiece(model, where)
    try:
        about = json.loads(model)
    except ValueError:
        about = {}
    return ListedPieces(about, where) if "sentencepiece" in about else HuggingFace(model, where)


def _in_folder(folder: Path) -> Path:
    for name in ("tokenizer.json", "vocab.json", "vocab.txt"):
        if (folder / name).exists():
            return folder / name
    raise InputError(f"{folder}: the folder has neither tokenizer.json nor vocab.json nor vocab.txt.")


def _word_pieces(path: Path) -> bytes:
    """BERT's vocabulary: an entry a line. One without capital letters was learnt from text in small letters."""
    try:
        entries = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not a text in UTF-8, an entry of the vocabulary in each line.") from None
    if "[UNK]" not in entries:
        raise InputError(f"{path}: the vocabulary has no entry [UNK], as one of BERT's has.")
    small = not any(entry != entry.lower() for entry in entries if not entry.startswith("["))
    tokenizer = tokenizers.Tokenizer(models.WordPiece({entry: i for i, entry in enumerate(entries)}))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=small)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer.to_str().encode()


def _byte_pairs(path: Path) -> bytes:
    """GPT-2's vocabulary: the ids of its entries, and beside them the merges, first learnt first."""
    merges = path.with_name("merges.txt")
    merges.open().close()  # a file that is missing is told as one
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges)))
    except Exception:  # the library raises nothing else
        raise InputError(f"{path}: this vocabulary and {merges.name} beside it do not belong together.") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def _sample(lines: Iterable[str]) -> list[str]:
    """All lines that are not blank, or as many as a vocabulary needs: a reservoir, where the n-th line takes the place
    of another with probability (room / n), so that in the end every line had the same chance."""
    chance = random.Random(0)  # noqa: S311
    kept: list[str] = []
    seen = size = 0
    room = SAMPLE_LINES
    for line in lines:
        if not line or line.isspace():
            continue
        seen += 1
        if len(kept) < room:
            kept.append(line)
            size += len(line)
        elif (place := int(chance.random() * seen)) < room:
            size += len(line) - len(kept[place])
            kept[place] = line
        while size > SAMPLE_TEXT and len(kept) > 1:
            place = chance.randrange(len(kept))
            kept[place], kept[-1] = kept[-1], kept[place]
            size -= len(kept.pop())
            room = len(kept)
    return kept

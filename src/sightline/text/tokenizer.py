"""Sub-word tokenizers: raw text to ids and back.

Vocabularies that are trained here are byte-pair models of sentencepiece; one vocabulary serves source and target, and
characters that it does not have are written as bytes. Vocabularies of BERT (WordPiece), GPT-2 (byte-level BPE) and
Marian (sentencepiece with a list of ids) can be loaded. Their own ids are mapped to ids that start with PAD, START, END
and UNKNOWN; the other entries follow in their own order.
"""

import base64
import io
import json
import random
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from sightline.errors import InputError
from sightline.files import read_json_object
from sightline.special import END, PAD, START, UNKNOWN

NAMES = "<pad>", "<s>", "</s>", "<unk>"  # for entries that a vocabulary does not have
HUGGING_FACE_NAMES = (
    ("[PAD]", "<pad>"),
    ("[CLS]", "<s>", "<|endoftext|>"),
    ("[SEP]", "</s>", "<|endoftext|>"),
    ("[UNK]", "<unk>"),
)
MASK_NAMES = "[MASK]", "<mask>"
"""Names of the token that stands for a masked word (BERT, RoBERTa). In a text, both stand for a mask."""
MASKS = re.compile("|".join(map(re.escape, MASK_NAMES)))
BARRIER = "\U0010fffd"  # a character of no language, so that no piece joins it to the text after it
FILE, SOURCE_FILE = "tokenizer.model", "source-tokenizer.model"

SAMPLE_LINES = 1_000_000
SAMPLE_TEXT = 100_000_000  # characters
FEW = 64  # texts that take less time than starting the threads that the library uses for any list
SEEDING = threading.Lock()  # sentencepiece has one seed for the whole process


Span = tuple[int, int]


class Tokenizer:
    """Encodes raw text as ids and decodes ids. If sources have another vocabulary, this is the one of targets, and
    `source` the one of sources."""

    def __init__(self, model: bytes, where: str = "the tokenizer", source: "Tokenizer | None" = None) -> None:
        self._where = where
        self.model = model
        """The complete vocabulary: `Tokenizer(model)` is an equal tokenizer."""
        self.source = self if source is None else source
        """The tokenizer of sources; usually this one."""
        self._vocabulary = _vocabulary(model, where)
        special = self._vocabulary.special
        self.own_ids = [*special, *(i for i in self._vocabulary.ids if i not in special)]
        """The vocabulary's own id for each id, as in the original weights; -1 if it has none."""
        self._ids = {own: ours for ours, own in enumerate(self.own_ids)}
        self._ids_equal = self.own_ids == list(range(len(self.own_ids)))

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int, special: Sequence[str] = ()) -> "Tokenizer":
        """Learn a byte-pair vocabulary of at most this size from raw text. A small corpus gives a smaller one.

        If the text has more than 1,000,000 lines or 100,000,000 characters, a uniform random sample of its lines is
        used. The same text gives the same vocabulary. `special`: names of more special tokens, which `encode` never
        returns.
        """
        sample = sample_lines(lines)
        if not sample:
            raise InputError("The text for learning a vocabulary is empty.")
        letters: set[str] = set()
        for line in sample:
            letters.update(line)
        least = 4 + len(special) + 256 + len(letters)  # special tokens, bytes, letters
        if vocab_size < least:
            raise InputError.of("vocab_size", vocab_size, f"must be at least {least} for this text, got {vocab_size}.")
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
            control_symbols=list(special),
            minloglevel=2,
        )
        return cls(model.getvalue())

    @classmethod
    def of_pieces(cls, pieces: Sequence[str], sentencepiece_model: bytes, where: str = "the tokenizer") -> "Tokenizer":
        """Create a tokenizer from a sentencepiece model and the list of its pieces in the order of their ids. A piece
        that is not in the list is unknown."""
        model = {"pieces": list(pieces), "sentencepiece": base64.b64encode(sentencepiece_model).decode()}
        return cls(json.dumps(model, ensure_ascii=False).encode(), where)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load a vocabulary: a sentencepiece model; Hugging Face's `tokenizer.json`; BERT's `vocab.txt`; GPT-2's
        `vocab.json` with `merges.txt` next to it; or a folder with one of the last three."""
        path = Path(path)
        try:
            if path.is_dir():
                path = _in_folder(path)
            if path.suffix == ".txt":
                return cls(_word_pieces(path), str(path))
            if path.suffix == ".json":
                model = read_json_object(path, error=InputError).get("model")
                if not isinstance(model, dict):  # in vocab.json "model" can be an entry
                    return cls(_byte_pairs(path), str(path))
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            path = Path(error.filename or path)
            raise InputError(f"{path}: cannot be read: {error.strerror}.", value=path) from None

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the tokenizer in a model folder."""
        source = {} if self.source is self else {SOURCE_FILE: self.source.model}
        return {FILE: self.model, **source}

    @property
    def sentencepiece(self) -> bytes | None:
        """The sentencepiece model, if the tokenizer uses one."""
        return self._vocabulary.sentencepiece

    @property
    def joint(self) -> bool:
        """Whether sources and targets have the same ids for the same pieces."""
        return self.source is self or self.source.all_pieces() == self.all_pieces()

    @property
    def size(self) -> int:
        """Number of entries in the vocabulary."""
        return len(self.own_ids)

    def token_id(self, name: str) -> int | None:
        """Return the id of the entry with this name, "[MASK]" for example, or None."""
        return self._by_piece.get(name)

    @cached_property
    def mask_id(self) -> int:
        """The id of the mask, "[MASK]" or "<mask>". A vocabulary without one has UNKNOWN: version 0.1 masked words with
        it."""
        found = map(self.token_id, MASK_NAMES)
        return next((token for token in found if token is not None), UNKNOWN)

    @cached_property
    def _by_piece(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.all_pieces())}

    def encode(self, texts: Sequence[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Return the ids of each text, without START and END.

        `dropout`: probability of skipping a merge (BPE-dropout, Provilkov et al., 2020), so that words are split in
        different ways. The same texts, dropout and seed give the same ids in one process, but not in another one:
        sentencepiece mixes random bits, drawn once per process, into the seed.
        """
        if not dropout:
            found = self._vocabulary.encode(list(texts))
        elif not 0 < dropout <= 1:
            raise InputError.of("dropout", dropout, f"must be between 0 and 1, got {dropout}.")
        elif isinstance(self._vocabulary, SentencePiece) and self._vocabulary.is_byte_pairs:
            found = self._vocabulary.encode_with_dropout(list(texts), dropout, seed)
        else:
            raise InputError(
                f"{self._where}: `dropout` needs a byte-pair model of sentencepiece.", option="dropout", value=dropout
            )
        return found if self._ids_equal else list(map(self._to_ids, found))

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        """Return the ids of each text, and the begin and end of each token in characters.

        A space before a word may be in its span. If a character is written as bytes, its last byte has the span.
        """
        found = self._vocabulary.encode_with_spans(list(texts))
        return [(self._to_ids(own), spans) for own, spans in found]

    def encode_masked(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each text, with `mask_id` for each "[MASK]" or "<mask>" in it, and the places of the masks
        in the ids.

        The text around a mask has the ids that it has around a word. A space before a mask belongs to the mask.
        """
        parts = [MASKS.split(text) for text in texts]
        parts = [[*(part.rstrip() for part in before), last] for *before, last in parts]
        firsts = self.encode([first for first, *_ in parts])
        others = iter(self._encode_inside([part for _, *rest in parts for part in rest]))
        found = []
        for first, (_, *rest) in zip(firsts, parts, strict=True):
            ids, places = [*first], list[int]()
            for _ in rest:
                places.append(len(ids))
                ids += [self.mask_id, *next(others)]
            found.append((ids, places))
        return found

    def _encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts that follow others. Sentencepiece would begin each of them with a space."""
        if self.sentencepiece is None:
            return self.encode(texts)
        found = self.encode_with_spans([BARRIER + text for text in texts])
        return [
            [id for id, (begin, _) in zip(ids, spans, strict=True) if begin >= len(BARRIER)]  # noqa: A001
            for ids, spans in found
        ]

    def _to_ids(self, own: Sequence[int]) -> list[int]:
        return list(map(self._ids.__getitem__, own))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. PAD, START and END have none."""
        own = [self.own_ids[i] for i in map(int, ids) if i not in (PAD, START, END)]
        return self._vocabulary.decode([i for i in own if i >= 0])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the vocabulary entry of each id; ▁ (Ġ in byte-level BPE) is a space."""
        return [self._vocabulary.piece(self.own_ids[i]) if self.own_ids[i] >= 0 else NAMES[i] for i in map(int, ids)]

    def token_text(self, id: int) -> str:  # noqa: A002
        """Return an id as text, with the space before it; its entry if that is not text on its own."""
        text = self.text_after_word(id)
        return text if text and "\ufffd" not in text else self.pieces([id])[0]

    def text_after_word(self, id: int) -> str:  # noqa: A002
        """Return the text that an id adds after a word, with the space between them, if it begins another one."""
        return self.decode([*self._word, id]).removeprefix(self.decode(self._word))

    @cached_property
    def _word(self) -> list[int]:
        return self.encode(["a"])[0]

    def all_pieces(self) -> list[str]:
        """Return all entries of the vocabulary, by id."""
        return self.pieces(range(self.size))


def with_end(source: Sequence[int], end: bool) -> list[int]:
    """Return a source with END, if the model needs one (`end`, see `ModelConfig.source_end`) or the source is empty."""
    return [*source, END] if end or not source else list(source)


def suggest_vocab_size(sentences: int) -> int:
    """Return a vocabulary size that suits a corpus of this many sentences."""
    for limit, size in ((20_000, 4_000), (200_000, 10_000), (1_000_000, 16_000)):
        if sentences <= limit:
            return size
    return 32_000


class SentencePiece:
    """A model of the library sentencepiece."""

    def __init__(self, model: bytes, where: str) -> None:
        self._processor = found = sentencepiece.SentencePieceProcessor()
        self.sentencepiece: bytes | None = model
        try:
            found.LoadFromSerializedProto(model)
        except RuntimeError:
            raise InputError(f"{where}: not a sentencepiece model.", value=where) from None
        self.ids = range(found.GetPieceSize())
        self.special = [found.pad_id(), found.bos_id(), found.eos_id(), found.unk_id()]

    @property
    def is_byte_pairs(self) -> bool:
        """Whether this is a byte-pair model: its scores are the ranks of merges, 0, -1, -2, ..., not probabilities."""
        return all(self._processor.GetScore(i).is_integer() for i in self.ids)

    def encode(self, texts: list[str]) -> list[list[int]]:
        encode = self._processor.Encode
        return [encode(text) for text in texts] if len(texts) < FEW else list(encode(texts))

    def encode_with_spans(self, texts: list[str]) -> list[tuple[list[int], list[Span]]]:
        found = [self._processor.Encode(text, return_type="offset_mapping") for text in texts]
        return [(one["ids"], one["offsets"]) for one in found]

    def encode_with_dropout(self, texts: list[str], dropout: float, seed: int) -> list[list[int]]:
        """Encode on one thread: with several, the results would depend on their timing."""
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
    """A vocabulary of Hugging Face's library tokenizers."""

    sentencepiece: bytes | None = None

    def __init__(self, model: bytes, where: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(model)
        except Exception:  # the library raises no narrower type
            raise InputError(f"{where}: the library tokenizers cannot read this vocabulary.", value=where) from None
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five characters
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        own = self._tokenizer.get_vocab()
        self.ids = sorted(own.values())
        self.special = [next((own[name] for name in names if name in own), -1) for names in HUGGING_FACE_NAMES]

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_spans(self, texts: list[str]) -> list[tuple[list[int], list[Span]]]:
        return [(found.ids, found.offsets) for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def piece(self, own: int) -> str:
        return str(self._tokenizer.id_to_token(own))


class ListedPieces:
    """Pieces of a sentencepiece model, with their positions in a list as ids (Marian)."""

    def __init__(self, model: dict[str, Any], where: str) -> None:
        try:
            self.sentencepiece: bytes | None = base64.b64decode(model["sentencepiece"], validate=True)
            processor = SentencePiece(self.sentencepiece, where)._processor
            self._pieces = [str(piece) for piece in model["pieces"]]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{where}: not a list of sentencepiece pieces.", value=where) from None
        self._processor, self.ids = processor, range(len(self._pieces))
        self._own = {piece: i for i, piece in enumerate(self._pieces)}
        self._codes = any(piece.startswith(">>") and piece.endswith("<<") for piece in self._pieces)
        self.special = [self._own.get(name, -1) for name in NAMES]
        for i in (END, UNKNOWN):
            if self.special[i] < 0:
                raise InputError(f"{where}: the vocabulary has no entry {NAMES[i]}.", value=where)
        if self.special[PAD] < 0:
            self.special[PAD] = self._own.get("<blank>", -1)

    def encode(self, texts: list[str]) -> list[list[int]]:
        codes = [self._code(text) for text in texts]
        rest = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
        found = [self._processor.Encode(text, out_type=str) for text in rest]
        return [self._own_ids(code, pieces) for code, pieces in zip(codes, found, strict=True)]

    def encode_with_spans(self, texts: list[str]) -> list[tuple[list[int], list[Span]]]:
        encoded = []
        for text in texts:
            code = self._code(text)
            begin = len(code)
            found = self._processor.Encode(text[begin:], return_type="offset_mapping")
            spans = [(begin + first, begin + last) for first, last in found["offsets"]]
            encoded.append((self._own_ids(code, found["pieces"]), [(0, begin), *spans] if code else spans))
        return encoded

    def _own_ids(self, code: str, pieces: list[str]) -> list[int]:
        return [self._own.get(piece, self.special[UNKNOWN]) for piece in ([code, *pieces] if code else pieces)]

    def _code(self, text: str) -> str:
        """Return the language code, >>fra<<, at the beginning of a text if the vocabulary has such codes."""
        return text[: text.find("<<") + 2] if self._codes and text.startswith(">>") and "<<" in text else ""

    def decode(self, ids: list[int]) -> str:
        # Sentencepiece returns pieces that it does not know (those of sources only) unchanged.
        text = str(self._processor.DecodePieces(list(map(self.piece, ids))))
        return text.replace("▁", " ").removeprefix(" ") if "▁" in text else text

    def piece(self, own: int) -> str:
        return self._pieces[own]


def _vocabulary(model: bytes, where: str) -> SentencePiece | HuggingFace | ListedPieces:
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
    raise InputError(f"{folder}: the folder has no tokenizer.json, vocab.json or vocab.txt.", value=folder)


def _word_pieces(path: Path) -> bytes:
    """Convert BERT's vocabulary: one entry per line. Without capital letters it is one for lower-case text."""
    try:
        entries = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not valid UTF-8.", value=path) from None
    if "[UNK]" not in entries:
        raise InputError(f"{path}: the vocabulary has no entry [UNK], so it is not one of BERT.", value=path)
    lower = not any(entry != entry.lower() for entry in entries if not entry.startswith("["))
    tokenizer = tokenizers.Tokenizer(models.WordPiece({entry: i for i, entry in enumerate(entries)}))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer.to_str().encode()


def _byte_pairs(path: Path) -> bytes:
    """Convert GPT-2's vocabulary: the ids of its entries, and the merges in merges.txt."""
    merges = path.with_name("merges.txt")
    merges.open().close()  # raises an OSError with its name if it is missing
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges)))
    except Exception:  # the library raises no narrower type
        raise InputError(f"{path}: the vocabulary does not match {merges.name}.", value=path) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def sample_lines(lines: Iterable[str]) -> list[str]:
    """Return all lines that are not blank, or a uniform sample (reservoir sampling) if they are too many."""
    generator = random.Random(0)  # noqa: S311
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
        elif (place := int(generator.random() * seen)) < room:
            size += len(line) - len(kept[place])
            kept[place] = line
        while size > SAMPLE_TEXT and len(kept) > 1:
            place = generator.randrange(len(kept))
            kept[place], kept[-1] = kept[-1], kept[place]
            size -= len(kept.pop())
            room = len(kept)
    return kept

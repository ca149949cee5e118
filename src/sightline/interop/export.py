"""Export a model for other software, and verify the export before its folder appears."""

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import torch

from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import Precision, convert
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.engine.translator import translation_request
from sightline.errors import CheckpointError, ConfigError
from sightline.files import optional_import, replacing_folder
from sightline.interop import onnx
from sightline.interop.hugging_face_files import quiet, write_hugging_face
from sightline.interop.onnx import Difference
from sightline.model.transformer import EncoderDecoder
from sightline.model_folder import SHORTLIST
from sightline.search.driver import search
from sightline.search.score import score
from sightline.search.types import Request
from sightline.special import END, UNKNOWN
from sightline.text.tokenizer import Tokenizer

Kind = Literal["huggingface", "ctranslate2", "onnx"]
KINDS: dict[Kind, str] = {"huggingface": "source.spm", "ctranslate2": "model.bin", "onnx": "decoder.onnx"}
"""The formats, each with a file that marks its folders."""
TOLERANCE = 1e-3
"""Largest difference of log-probabilities that the order of sums can cause."""
GREEDY = SearchConfig(beams=1)


def export_model(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    folder: Path,
    kind: Kind,
    *,
    precision: Precision = "float32",
    shortlist: Path | None = None,
    verify: bool = True,
) -> Difference | None:
    """Write a model for other software and compare both. If they differ, or after any error, no folder is left.
    `precision` and `shortlist` (its file) are for CTranslate2."""
    if kind != "ctranslate2" and precision != "float32":
        raise ConfigError.of("precision", precision, f"must be float32 for {kind}, got {precision}.")
    folder, sources = folder.absolute(), _sources(tokenizer)
    requests = [translation_request(ids, GREEDY, model.config) for ids in sources]
    with replacing_folder(folder, KINDS[kind], "exported") as draft:
        if kind == "huggingface":
            write_hugging_face(model, tokenizer, draft)
            found = _as_hugging_face(draft, model, tokenizer, requests) if verify else None
        elif kind == "ctranslate2":
            convert(model, tokenizer, draft, quantization=precision)
            if shortlist is not None:
                shutil.copyfile(shortlist, draft / SHORTLIST)
            found = _as_ctranslate2(draft, model, precision, requests) if verify else None
        else:
            onnx.export(model, tokenizer, draft)
            found = onnx.verify(draft, model, sources) if verify else None
        if found is not None and precision == "float32" and not found.numbers <= TOLERANCE:
            raise CheckpointError(
                f"{folder}: deleted: its log-probabilities differ from those of the model by up to "
                f"{found.numbers:.2g}. To keep it, set `verify` to false.",
                option="verify",
                value=found.numbers,
            )
    return found


def _texts() -> list[str]:
    return [pair.source for pair in islice(generate("test", 12), 12)]


def _sources(tokenizer: Tokenizer) -> list[list[int]]:
    """Return sentences, and random tokens of the whole vocabulary."""
    source, generator = tokenizer.source, torch.Generator().manual_seed(0)
    drawn = torch.randint(UNKNOWN + 1, source.size, (4, 12), generator=generator).tolist()
    return [*source.encode(_texts()), *drawn]


def _as_ctranslate2(
    folder: Path, model: EncoderDecoder, precision: Precision, requests: Sequence[Request]
) -> Difference:
    theirs = [best for best, *_ in CTranslate2Backend(folder, precision).search(requests, GREEDY)]
    return _difference(model, requests, [best.ids for best in theirs], [best.log_probs for best in theirs])


@torch.no_grad()
def _as_hugging_face(
    folder: Path, model: EncoderDecoder, tokenizer: Tokenizer, requests: Sequence[Request]
) -> Difference:
    with quiet():
        theirs = optional_import("transformers", extra="export").AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        words = optional_import("transformers", extra="export").AutoTokenizer.from_pretrained(folder)
    numbers = {piece: i for i, piece in enumerate(tokenizer.all_pieces())}
    names = {i: piece for piece, i in (words.target_encoder if words.separate_vocabs else words.encoder).items()}
    for text, ids in zip(_texts(), tokenizer.source.encode(_texts()), strict=True):
        if words.convert_ids_to_tokens(words(text)["input_ids"])[:-1] != tokenizer.source.pieces(ids):
            raise CheckpointError(f"{folder}: the exported vocabulary tokenises this text differently: {text!r}.")
    answers, log_probs = [], []
    for request in requests:
        encoded = torch.tensor([[words.encoder[piece] for piece in tokenizer.source.pieces(request.source)]])
        written = theirs.generate(encoded, num_beams=1, max_new_tokens=2 * len(request.source) + 9)[0]
        logits = theirs(encoded, decoder_input_ids=written[None, :-1]).logits[0].log_softmax(-1)
        log_probs.append(logits.gather(1, written[1:, None])[:, 0].tolist())
        answers.append([numbers[names[i]] for i in written[1:].tolist()])
    ended = [ids[:-1] if ids[-1] == END else ids for ids in answers]
    return _difference(model, requests, ended, log_probs)


def _difference(
    model: EncoderDecoder, requests: Sequence[Request], answers: list[list[int]], log_probs: list[list[float]]
) -> Difference:
    """Compare the log-probabilities of the export's own answers. An answer that is cut off has no end."""
    ours = score([model], requests, answers)
    pairs = [(a, b) for mine, theirs in zip(ours, log_probs, strict=True) for a, b in zip(mine, theirs, strict=False)]
    expected = [best.ids for best, *_ in search(model, requests, GREEDY)]
    different = sum(one[: len(other)] != other for one, other in zip(answers, expected, strict=True))
    return Difference(max((abs(a - b) for a, b in pairs), default=0.0), different, len(requests))

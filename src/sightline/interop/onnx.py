"""Export an encoder-decoder to ONNX, a format of many runtimes, as two graphs; run and verify the export.

`encoder.onnx` reads a source once and returns the keys and values of encoder-decoder attention, for each decoder layer.
`decoder.onnx` reads one or more next tokens of each answer with the keys and values of all earlier tokens; it returns
the logits after each token, and the keys and values that now include the new tokens. Batch sizes and lengths are free;
the past may be empty. Weights are in float32. Tied weights are in a file once, but a matrix of less than 1 MB may be
there transposed too.

Running the graphs needs neither torch nor Sightline: `config.json` has the ids of the special tokens, and
`tokenizer.model` is the vocabulary. An answer begins with the start token; a source ends in the end token.
"""

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sightline.backends.ctranslate2_format import check_exportable
from sightline.config import ModelConfig, SearchConfig
from sightline.engine.translator import translation_request
from sightline.errors import CheckpointError, InputError
from sightline.files import optional_import, read_json_object, replacing_folder
from sightline.model.cache import CrossKV, rows_of
from sightline.model.mask import Mask
from sightline.model.protocol import Inputs
from sightline.model.transformer import CrossAttention, EncoderDecoder, split
from sightline.search.driver import padded, search
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer

OPSET = 18
"""Version of ONNX's operators: the oldest that torch writes, for older runtimes."""

Ids = Int[Tensor, "batch new"]
Source = Int[Tensor, "batch source"]
SourceMask = Bool[Tensor, "batch source"]
CrossKeys = Float[Tensor, "layers batch heads source d_k"]
Vectors = Float[Tensor, "batch new d_model"]
Past = Float[Tensor, "layers batch heads past d_k"]


# --- Graphs


class EncoderGraph(nn.Module):
    """The encoder, and the keys and values that each decoder layer computes from its output."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Source, source_mask: SourceMask) -> tuple[CrossKeys, CrossKeys]:
        memory = self.model.decoder.project_source(self.model.encoder(source, source_mask), Mask())
        return torch.stack([one.keys for one in memory]), torch.stack([one.values for one in memory])


class DecoderGraph(nn.Module):
    """The decoder for the next tokens. Earlier keys and values are inputs, to which the new ones are appended: a graph
    cannot write into a cache without copying it."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        target: Ids,
        source_mask: SourceMask,
        memory_keys: CrossKeys,
        memory_values: CrossKeys,
        past_keys: Past,
        past_values: Past,
    ) -> tuple[Float[Tensor, "batch new vocab"], Past, Past]:
        decoder, past = self.model.decoder, past_keys.shape[3]
        columns = torch.arange(past + target.shape[1], device=target.device)
        positions = columns[None, past:]
        mask, source = Mask(columns <= positions[:, None, :, None], no_empty_rows=True), Mask.of(source_mask)
        x, rotary = decoder.embedding(target, positions), decoder.rotary_table(positions)
        caches: list[Any] = []
        for i, layer in enumerate(decoder.layers):
            caches.append(GrowingCache(past_keys[i], past_values[i]))
            cross = CrossKV(memory_keys[i], memory_values[i], source)
            read_target = partial(layer.self_attention, mask=mask, rotary=rotary, cache=caches[i])
            x = layer.self_attention_residual(x, read_target)
            x = layer.cross_attention_residual(x, partial(read_source, attention=layer.cross_attention, cross=cross))
            x = layer.feed_forward_residual(x, layer.feed_forward)
        logits = self.model.classifier(decoder.norm(x))
        return logits, torch.stack([one.keys for one in caches]), torch.stack([one.values for one in caches])


class GrowingCache:
    """A layer's part of the cache (`model.cache.LayerCache`), which grows by the new keys and values."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        return self.keys, self.values


def read_source(x: Vectors, attention: CrossAttention, cross: CrossKV) -> Vectors:
    """Return encoder-decoder attention with one row of the source for each row of the target; the model's own checks
    the number of rows, which is free here."""
    (q,) = split(attention.query(x), 1, attention.heads)
    return attention.concat(attention.attend(q, *cross))


# --- Export


def export(model: EncoderDecoder, tokenizer: Tokenizer, folder: Path | str) -> None:
    """Write a model and its vocabulary. The folder is written completely or not at all; an older one is replaced."""
    optional_import("onnxscript", extra="export")
    folder, config = Path(folder).absolute(), model.config
    check_exportable(config, tokenizer, "ONNX")
    special = {"pad": PAD, "start": START, "end": END, "unknown": UNKNOWN}
    size = {"layers": config.decoder.layers, "heads": config.decoder.heads, "vocab_size": config.vocab_size}
    size |= {"d_k": config.d_model // config.decoder.heads, "max_length": config.positions.max_length}
    about = {"sightline": {**size, **special, "source_end": config.source_end, "model": config.model_dump()}}
    with replacing_folder(folder, "decoder.onnx", "exported") as draft:
        _write_graphs(_copy(model), draft)
        for name, data in tokenizer.files.items():
            (draft / name).write_bytes(data)
        (draft / "config.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def _copy(model: EncoderDecoder) -> EncoderDecoder:
    """Return a new model with the same weights: on the CPU, in float32, tied weights shared, without hooks."""
    with torch.random.fork_rng(devices=[]):  # random initial weights are replaced
        copy = EncoderDecoder(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def _write_graphs(model: EncoderDecoder, folder: Path) -> None:
    """Write both graphs. The exporter infers free sizes from the examples: all sizes must differ, none may be 0 or 1,
    and no two inputs may be one tensor."""
    config, dim = model.config, torch.export.Dim
    batch, new, past = dim("batch"), dim("new"), dim("past")
    source = dim("source", max=config.positions.max_length)
    shape = (config.decoder.layers, 3, config.decoder.heads, 5, config.d_model // config.decoder.heads)
    rows, memory, known = {0: batch, 1: source}, {1: batch, 3: source}, {1: batch, 3: past}
    mask = Input("source_mask", torch.ones(3, 5, dtype=torch.bool), rows)
    reads = [Input("source", torch.zeros(3, 5, dtype=torch.long), rows), mask]
    writes = [
        Input("target", torch.zeros(3, 4, dtype=torch.long), {0: batch, 1: new}),
        mask,
        *(Input(name, torch.zeros(shape), memory) for name in ("memory_keys", "memory_values")),
        *(Input(name, torch.zeros(*shape[:3], 7, shape[4]), known) for name in ("past_keys", "past_values")),
    ]
    _write(EncoderGraph(model), reads, ["memory_keys", "memory_values"], folder / "encoder.onnx")
    _write(DecoderGraph(model), writes, ["logits", "keys", "values"], folder / "decoder.onnx")


class Input(NamedTuple):
    """An input of a graph."""

    name: str
    example: Tensor
    free: dict[int, Any]
    """Names of the axes of any size."""


def _write(module: nn.Module, inputs: Sequence[Input], outputs: Sequence[str], path: Path) -> None:
    names, examples, shapes = (tuple(each) for each in zip(*inputs, strict=True))
    with _quiet(), torch.no_grad():
        program = torch.export.export(module.eval(), examples, dynamic_shapes=shapes, strict=False)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=shapes,  # for their names
            opset_version=OPSET,
            verbose=False,
        )
        if exported is not None:
            passes = optional_import("onnx_ir.passes.common", extra="export")
            passes.ClearMetadataAndDocStringPass()(exported.model)  # names of source files
            exported.save(str(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings and log messages of torch's exporter."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# --- Execution


class OnnxModel:
    """A model that `export` wrote, run by onnxruntime on the CPU. It is `Generative`: `sightline.search` searches with
    it."""

    def __init__(self, folder: Path | str, threads: int | None = None) -> None:
        """`threads`: None for the default of onnxruntime."""
        library, folder = optional_import("onnxruntime", extra="export"), Path(folder)
        about = read_json_object(folder / "config.json").get("sightline")
        paths = [folder / f"{name}.onnx" for name in ("encoder", "decoder")]
        if not isinstance(about, dict) or "model" not in about or not all(path.exists() for path in paths):
            raise CheckpointError(
                f"{folder}: no model found that this version of Sightline exported to ONNX. Export it again.",
                value=folder,
            )
        self.config, self.device = ModelConfig(**about["model"]), torch.device("cpu")
        options = library.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # errors only
        providers = ["CPUExecutionProvider"]
        try:
            self.encoder, self.decoder = (library.InferenceSession(path, options, providers) for path in paths)
        except Exception as error:  # its many exception classes have no common base
            reason = " ".join(str(error).split()).rstrip(".")
            raise CheckpointError(f"{folder}: onnxruntime cannot use this model: {reason}.", value=folder) from None

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int) -> "OnnxState":
        """Read the sources, padded on the right. `capacity` only limits the length: the state grows."""
        if inputs.source is None or (inputs.target is not None and inputs.target.shape[1]):
            raise InputError("An exported model starts from a source alone.", option="given")
        most = self.config.positions.max_length
        if max(inputs.source.shape[1], capacity) > most:
            raise InputError.of("source", None, f"and answer have at most {most} tokens.")
        layout = inputs.source_layout
        mask = layout if isinstance(layout, Tensor) else torch.ones_like(inputs.source, dtype=torch.bool)
        return OnnxState(self, inputs.source, mask, beams, capacity)

    def step(self, tokens: Int[Tensor, "rows 1"], state: "OnnxState") -> Float[Tensor, "rows vocab"]:
        """Read the next token of each row; return a score for every token that could follow it."""
        return state.read(tokens)[:, -1]


class OnnxState:
    """The keys and values of a batch, `beams` neighbouring rows for each sentence."""

    def __init__(
        self,
        model: OnnxModel,
        source: Int[Tensor, "sentences source"],
        source_mask: Bool[Tensor, "sentences source"],
        beams: int,
        capacity: int,
    ) -> None:
        self.model, self.beams, self.capacity, stack = model, beams, capacity, model.config.decoder
        keys, values = model.encoder.run(None, {"source": source.numpy(), "source_mask": source_mask.numpy()})
        shape = (stack.layers, len(source) * beams, stack.heads, 0, model.config.d_model // stack.heads)
        past = np.zeros(shape, np.float32)
        self.past = {"past_keys": past, "past_values": past}
        self.memory = {
            "source_mask": source_mask.numpy().repeat(beams, 0),
            "memory_keys": keys.repeat(beams, 1),
            "memory_values": values.repeat(beams, 1),
        }

    def read(self, tokens: Int[Tensor, "rows new"]) -> Float[Tensor, "rows new vocab"]:
        """Return the scores after each of the next tokens, and keep their keys and values."""
        length = self.past["past_keys"].shape[3] + tokens.shape[1]
        if length > self.capacity:
            message = f"`capacity` = {self.capacity} is too small for {length} positions."
            raise InputError(message, option="capacity", value=self.capacity)
        given = {"target": tokens.numpy(), **self.memory, **self.past}
        logits, keys, values = self.model.decoder.run(["logits", "keys", "values"], given)
        self.past = {"past_keys": keys, "past_values": values}
        return torch.from_numpy(logits)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        self.past = {name: kept[:, rows.numpy()] for name, kept in self.past.items()}

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        rows = rows_of(sentences, self.beams)
        self.reorder(rows)
        source_mask = self.memory.pop("source_mask")
        self.memory = {name: kept[:, rows.numpy()] for name, kept in self.memory.items()}
        self.memory["source_mask"] = source_mask[rows.numpy()]


# --- Comparison


class Difference(NamedTuple):
    """Difference between an export and the model."""

    numbers: float
    """Largest difference of log-probabilities; for ONNX, of logits, in one pass or step by step."""
    answers: int
    """Sentences whose greedy answers differ."""
    sentences: int


@torch.no_grad()
def verify(folder: Path | str, model: EncoderDecoder, sources: Sequence[Sequence[int]]) -> Difference:
    """Load an export and compare it with the model on sources (ids without END), at least one."""
    ours, theirs, greedy = _copy(model), OnnxModel(folder), SearchConfig(beams=1)
    requests = [translation_request(ids, greedy, model.config) for ids in sources]
    expected, found = ([best.ids for best, *_ in search(one, requests, greedy)] for one in (ours, theirs))
    source, _ = padded([request.source for request in requests], theirs.device)
    target, _ = padded([[START, *ids] for ids in expected], theirs.device)
    logits = ours(source, target, source != PAD)
    inputs = Inputs(source, source_layout=source != PAD)
    one_pass, state = (theirs.start(inputs, capacity=target.shape[1]) for _ in range(2))
    steps = torch.stack([theirs.step(column[:, None], state) for column in target.unbind(1)], 1)
    gaps = [(given - logits)[target != PAD].abs().max().item() for given in (one_pass.read(target), steps)]
    different = sum(one != other for one, other in zip(expected, found, strict=True))
    return Difference(max(gaps), different, len(sources))

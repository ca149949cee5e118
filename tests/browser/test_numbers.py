"""Every number on the page is computed by the model, and follows from the numbers shown with it."""

import contextlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import get_args

import pytest
import torch

from serving import cannot
from sightline.config import ModelConfig
from sightline.engine import load
from sightline.model.protocol import Inputs
from sightline.model.transformer import build
from sightline.trace.lineage import Rule, stacks
from sightline.trace.pack import pack_trace
from sightline.trace.watch import trace_pass
from sightline.trace.what_if import PARTS, what_if
from support import ONE_STACK, random_weights

TEXT, TARGET = "The animal was too tired.", "Das Tier war zu müde."
WEB = Path(__file__).parents[2] / "web"


def number(text):
    plain = text.strip().replace("\u2212", "-").replace("∞", "inf")
    return float(plain)


def shown(value):
    """The largest rounding error of a written number, doubled."""
    return abs(value) * 1e-3 if abs(value) >= 1e5 else min(1e-4, abs(value) * 1e-3) + 1e-6


def address(model, why):
    target = {"target": TARGET} if model == "taught" else {}
    return "?" + urllib.parse.urlencode({"room": "glass", "model": model, "text": TEXT, **target, "why": why})


READ = """() => {
  const panel = document.querySelector("[data-node]");
  const text = (element) => element.innerText;
  const all = (part) => [...panel.querySelectorAll(`[data-part=${part}]`)];
  return {
    kind: panel.dataset.kind,
    result: text(panel.querySelector("[data-part=result]")),
    also: all("also").map((one) => [one.dataset.label, text(one.querySelector("dd"))]),
    rows: all("row").map((one) => [...one.querySelectorAll("td")].map(text)),
  };
}"""

SHOW = """(address) => {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}"""


def read_panel(page, model, name, at):
    """Read the explanation of a number."""
    why = f"{name}@{','.join(map(str, at))}"
    page.evaluate(SHOW, address(model, why))
    page.wait_for_selector(f'[data-node="{name}"][data-at="{",".join(map(str, at))}"]')
    found = page.evaluate(READ)
    also = {label: number(value) for label, value in found["also"]}
    rows = [[number(cell) for cell in row] for row in found["rows"]]
    return found["kind"], number(found["result"]), also, rows


ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def again(kind, also, rows):  # noqa: PLR0911, PLR0912 - a case for each kind
    """The number computed from the shown operands, and the largest rounding error."""
    values = list(also.values())
    match kind:
        case "dot":
            for a, b, product in rows:
                assert abs(a * b - product) <= 1e-3 * max(1.0, abs(a), abs(b))
            return sum(row[2] for row in rows) + sum(values), 1e-4 * math.sqrt(len(rows))
        case "sum":
            return sum(values), 2e-4
        case "product":
            return math.prod(values), min(1e-4 * max(map(abs, values)), 1e-3 * abs(math.prod(values)))
        case "quotient":
            return values[0] / values[1], min(1e-4, 1e-3 * abs(values[0] / values[1]))
        case "softmax":
            if rows:
                most = max(score for score, _ in rows)
                for score, power in rows:
                    assert abs(math.exp(score - most) - power) <= 2e-4
                assert abs(sum(power for _, power in rows) - also["sum of all"]) <= 1e-4 * len(rows)
            return also["this one"] / also["sum of all"], 1e-4
        case "mask":
            return -math.inf if "hidden" in also else also["scaled score"], 1e-4
        case "norm":
            x, mean, variance = also["x"], also["μ"], also["σ²"]
            root = math.sqrt(variance + also["ε"])
            return also["γ"] * (x - mean) / root + also["β"], 3e-4 * max(1.0, 1 / root)
        case "mean":
            return sum(row[0] for row in rows) / len(rows), 1e-4 / math.sqrt(len(rows))
        case "variance":
            for x, square in rows:
                assert abs((x - also["μ"]) ** 2 - square) <= 4e-4 * max(1.0, abs(x))
            return sum(row[1] for row in rows) / len(rows), 1e-4
        case "activation":
            ((label, x),) = also.items()
            return ACTIVATIONS[label[3:-1]](x), 1e-4
        case "gate":
            return also["g"] / (1 + math.exp(-also["g"])) * also["x"], 1e-4 * max(1.0, *map(abs, values))
        case "turn":
            return values[0] * values[1] + values[2] * values[3], 1e-4 * (1 + sum(map(abs, values)))
        case "wave":
            (label, position), (_, timescale) = also.items()
            return (math.sin if "(sine)" in label else math.cos)(position / timescale), 1e-3
        case "weight" | "same":
            return values[0], 0.0
    raise AssertionError(kind)


USUAL = {"dot", "sum", "product", "quotient", "softmax", "mask", "norm", "mean", "variance", "activation", "same"}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("taught", {*USUAL, "wave"}),
        ("gpt", {*USUAL, "weight"}),
        ("llama", {*USUAL, "wave", "turn", "gate"} - {"activation"}),
        ("bert", {*USUAL, "weight"} - {"mask", "product"}),  # its embeddings are not scaled
    ],
)
def test_every_number_follows_from_its_shown_operands(visit, folders, model, kinds):
    """Some numbers of every tensor: equal to the engine's, and equal to the result of their shown rule."""
    engine = load(folders[model], device="cpu")
    trace = engine.trace(TEXT, TARGET) if model == "taught" else engine.trace(TEXT)
    page = visit().go(address(model, f"{trace.names()[0]}@0,0"))
    chance, seen = random.Random(7), set()
    for name in trace.names():
        values = trace[name].values
        for _ in range(2):
            at = [chance.randrange(size) for size in values.shape]
            kind, result, also, rows = read_panel(page, model, name, at)
            real = values[tuple(at)].item()
            seen.add(kind)
            assert result == real or abs(result - real) <= shown(real), (name, at)
            derived, rounding = again(kind, also, rows)
            assert derived == result or abs(derived - result) <= rounding + shown(result), (name, at, kind)
    assert seen >= kinds


MODELS = {
    "encoder-decoder": {},
    "encoder-decoder-pre-norm": {"norm": "pre", "activation": "gelu", "positions": {"kind": "halves", "start": 2}},
    "encoder-decoder-tensor2tensor": {
        "positions": {"kind": "halves", "frequencies": "tensor2tensor", "start": 1},
        "activation": "swish",
        "attention_bias": True,
        "classifier_bias": True,
    },
    "no-positions": {"positions": {"kind": "none"}, "scale_embedding": False},
    **ONE_STACK,
    "gated-reader": {"architecture": "encoder-only", "activation": "swiglu", "positions": {"kind": "rotary"}},
}
DECODER = "decoder.layers.0.self_attention"
WHAT_IFS = {
    **{part: {"without": [part]} for part in PARTS},
    "heads": {"remove_heads": {DECODER: [0]}, "average_heads": {DECODER: [1]}},
    "cells": {"set_attention": {DECODER: {(0, 2, 0): 0.5, (1, 2, 1): 0.0}}, "average_heads": {DECODER: [1]}},
}


def write_trace(folder, name, model, **changes):
    """Write the trace of a model, inside a what-if, with its weights."""
    ids = {"source": [5, 1, 4, 3], "target": [1, 6, 2]}
    with contextlib.ExitStack() as stack, torch.no_grad():
        if changes:
            stack.enter_context(what_if(model, **changes))
        sides = {kind["side"] for kind in stacks(model)}
        trace = trace_pass(model, Inputs(**{side: torch.tensor([ids[side]]) for side in sides})).sentence(0)
    trace.ids = {side: ids[side] for side in sides}
    pieces = [f"▁word{i}" for i in range(model.config.vocab_size)]
    trace.tokens = {side: [pieces[i] for i in own] for side, own in trace.ids.items()}
    weights = {name: one.tolist() for name, one in model.named_parameters(remove_duplicate=False)}
    (folder / f"{name}.trace").write_bytes(pack_trace(trace))
    (folder / f"{name}.json").write_text(json.dumps({"weights": weights, "pieces": pieces}), "utf-8")


@pytest.mark.medium
def test_every_number_of_small_models_is_recomputed(tmp_path):
    """By the page's rules from the operands that they show; also inside what-ifs."""
    stack, models = {"layers": 2, "heads": 2, "d_ff": 6}, {}
    for name, options in MODELS.items():
        sizes = {"vocab_size": 7, "d_model": 8, "encoder": stack, "decoder": stack, "embedding_norm": True}
        models[name] = random_weights(build(ModelConfig.model_validate({**sizes, **options})))
        write_trace(tmp_path, name, models[name])
    for name, changes in WHAT_IFS.items():
        write_trace(tmp_path, f"what-if-{name}", models["encoder-decoder-pre-norm"], **changes)
        if name != "positions":
            continue
        write_trace(tmp_path, f"what-if-{name}-rotary", models["llama"], **changes)
    write_trace(tmp_path, "what-if-post-norm", models["encoder-decoder"], without=["residuals", "norms@decoder"])
    (tmp_path / "rules.json").write_text(json.dumps(get_args(Rule)), "utf-8")
    if not shutil.which("npx") or not (WEB / "node_modules").exists():
        cannot("npm or web/node_modules is missing; run make web")
    command = ["npx", "vitest", "run", "src/trace/lineage.test.ts"]
    environment = {**os.environ, "VITE_TRACES": str(tmp_path)}
    done = subprocess.run(command, check=False, cwd=WEB, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_unscaled_embeddings_have_no_scale(visit):
    page = visit().go(address("bert", "encoder.embedding.scaled@3,1") + "&open=encoder.embedding&word=s3")
    panel = page.locator("[data-node]")
    panel.wait_for()
    page.locator(".katex").nth(1).wait_for()
    assert "√" not in panel.inner_text()
    assert panel.locator(".katex .sqrt").count() == 0
    assert panel.get_attribute("data-kind") == "same"
    steps = page.locator(".body .step strong")
    steps.first.wait_for()
    assert "√" not in page.locator(".body").inner_text()


def test_the_page_has_no_random_numbers():
    sources = [path for path in (WEB / "src").rglob("*") if path.suffix in (".ts", ".svelte")]
    assert sources
    for path in sources:
        assert not re.search(r"Math\.random|getRandomValues|randomUUID", path.read_text("utf-8")), path

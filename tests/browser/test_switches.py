"""Changes to the model in the Glass room: old and new side by side, with the numbers of the engine."""

import contextlib
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
import torch

from serving import cannot
from sightline.engine import load
from sightline.special import END

TEXT = "The animal was too tired."
SELF, CROSS = "encoder.layers.1.self_attention", "decoder.layers.0.cross_attention"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def address(**view):
    return "?" + urllib.parse.urlencode({"room": "glass", "text": TEXT, **view})


@pytest.fixture(scope="module")
def engines(folders):
    return {name: load(folder, device="cpu", backend="torch") for name, folder in folders.items()}


def panel(page):
    return page.get_by_role("group", name="Switch off parts")


def number(text):
    return float(text.replace("\u2212", "-"))


def log_probs(engine, target, **changes):
    """The log-probabilities of the tokens of one pass, of a changed model."""
    with engine.what_if(**changes) if changes else contextlib.nullcontext():
        trace = engine.trace(TEXT, target) if target else engine.trace(TEXT)
    decodes = "target" in trace.ids
    ids = [*trace.ids["target"][1:], *([END] if target else [])] if decodes else trace.ids["source"]
    logits = trace["logits"].values[: len(ids)]
    return logits.log_softmax(-1)[torch.arange(len(ids)), ids].numpy()


def compared(page, engine, target, **changes):
    """Check the shown log-probabilities of the model before and after the changes."""
    page.locator("[data-entropy=after]").wait_for()
    before, after = log_probs(engine, target), log_probs(engine, target, **changes)
    expected = after - before
    page.wait_for_function(
        """(expected) => {
          const shown = [...document.querySelectorAll("[data-change]")].map((one) => Number(one.dataset.change));
          return shown.length === expected.length && shown.every((one, i) => Math.abs(one - expected[i]) < 1e-4);
        }""",
        arg=expected.tolist(),
    )
    sums = [number(page.locator(f"[data-sum={when}]").inner_text()) for when in ("before", "after")]
    assert np.abs(np.array(sums) - [before.sum(), after.sum()]).max() <= 0.006


def test_a_part_is_switched_off_and_on_again(visit, engines):
    engine = engines["taught"]
    own = engine.translate(TEXT, beams=1)[0].text
    page = visit().go(address())
    page.locator(".figure[data-stored=false] .head img").first.wait_for()
    pictures = "() => [...document.querySelectorAll('.head img')].map((one) => one.src)"
    page.wait_for_function("() => [...document.querySelectorAll('.head')].every((one) => one.querySelector('img'))")
    plain = page.evaluate(pictures)
    panel(page).get_by_role("button", name="Positions").click()
    assert "changes=positions" in page.url
    page.get_by_text("This is a changed model (no positions)").wait_for()
    page.get_by_text("the encoder gives each token the same vector in any order").wait_for()
    compared(page, engine, own, without=["positions"])
    assert "taught with changes" in page.locator("footer").inner_text()
    panel(page).get_by_role("button", name="Feed-forward").click()
    compared(page, engine, own, without=["positions", "feed-forward"])
    with engine.what_if(without=["positions", "feed-forward"]):
        changed = engine.translate(TEXT, beams=1)[0].text
    answers = [page.locator(f"[data-answer={when}]") for when in ("before", "after")]
    page.wait_for_function(
        "(text) => document.querySelector('[data-answer=after]')?.innerText.trim() === text", arg=changed
    )
    assert answers[0].inner_text() == own
    page.reload()
    compared(page, engine, own, without=["positions", "feed-forward"])
    assert panel(page).get_by_role("button", name="Positions").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Switch everything on again").click()
    page.get_by_text("This is a changed model").wait_for(state="detached")
    page.wait_for_function(f"(plain) => JSON.stringify(({pictures})()) === JSON.stringify(plain)", arg=plain)
    assert "changes=" not in page.url
    assert page.locator("[data-change]").count() == 0
    page.go_back()
    compared(page, engine, own, without=["positions", "feed-forward"])


@pytest.mark.parametrize(
    ("path", "title", "item"),
    [
        ("decoder.layers.0.feed_forward", "Feed-forward", "feed-forward@decoder.layers.0.feed_forward"),
        ("decoder.layers.1.self_attention", "Look-ahead mask", "look-ahead-mask@decoder.layers.1.self_attention"),
        (CROSS, "÷ √dₖ", f"scale@{CROSS}"),
        (f"{SELF}_residual.sum", "Residuals", f"residuals@{SELF}_residual"),
        (f"{SELF}_residual", "Norms", f"norms@{SELF}_residual"),
        ("encoder.embedding", "Positions", "positions@encoder.embedding"),
    ],
)
def test_a_part_is_switched_off_on_its_box_by_keyboard(visit, engines, path, title, item):
    engine = engines["taught"]
    page = visit().go(address(open=path))
    box = page.locator(f"[data-path='{path}']")
    box.get_by_role("button", name=f"Switch off: {title}").focus()
    page.keyboard.press("Enter")
    assert urllib.parse.quote(item) in page.url
    compared(page, engine, engine.translate(TEXT, beams=1)[0].text, without=[item])
    assert box.locator(".title .off").is_visible()
    page.keyboard.press("Enter")  # the focus stays
    page.locator("[data-change]").first.wait_for(state="detached")


def test_heads_and_cells_are_changed_in_their_attention(visit, engines):
    engine = engines["taught"]
    own = engine.translate(TEXT, beams=1)[0].text
    page = visit().go(address(open=CROSS, heads="1", word="t2", key="3"))
    choice = page.locator(".body select")
    choice.select_option("average")
    compared(page, engine, own, average_heads={CROSS: [1]})
    choice.select_option("scale")
    page.get_by_label("Factor of head 2").fill("-1.5")
    page.keyboard.press("Tab")
    compared(page, engine, own, scale_heads={CROSS: {1: -1.5}})
    choice.select_option("remove")
    compared(page, engine, own, remove_heads={CROSS: [1]})
    cell = page.get_by_label("Weight of the selected cell")
    cell.fill("0.8")
    page.keyboard.press("Enter")
    changes = {"remove_heads": {CROSS: [1]}, "set_attention": {CROSS: {(1, 2, 3): 0.8}}}
    compared(page, engine, own, **changes)
    with engine.what_if(**changes):
        after = engine.trace(TEXT, own)[f"{CROSS}.probabilities"].values[1, 2, 3]
    before = engine.trace(TEXT, own)[f"{CROSS}.probabilities"].values[1, 2, 3]
    matrix = page.get_by_role("application", name="Difference: after")
    page.wait_for_function(
        """(expected) => [...document.querySelectorAll("figure")].some((one) => one.innerText.includes("Difference")
          && Math.abs(Number(one.querySelector("strong").innerText.replace("\u2212", "-")) - expected) < 1e-4)""",
        arg=(after - before).item(),
    )
    matrix.focus()
    page.keyboard.press("ArrowRight")
    assert "key=4" in page.url
    choice.select_option("")
    page.get_by_role("textbox").fill("The animal was old.")  # the cell belongs to the last text
    page.locator("[data-change]").first.wait_for(state="detached")
    assert "cells=" not in page.url


@pytest.mark.parametrize(
    ("model", "part", "sentence"),
    [
        ("gpt", "look-ahead-mask", "each position sees the tokens that come later"),
        ("llama", "positions", "which tokens came before it, but not in which order"),
        ("bert", "positions", "the same vector in any order"),
    ],
)
def test_models_of_one_stack(visit, engines, model, part, sentence):
    page = visit().go(address(model=model, changes=part))
    page.get_by_text(sentence).wait_for()
    compared(page, engines[model], "", without=[part])
    assert panel(page).get_by_role("button", name="Look-ahead mask").count() == (model != "bert")


@pytest.mark.parametrize("width", [390, 1024, 1400])
def test_pictures_of_heads_keep_their_size_next_to_the_sign(visit, width):
    page = visit(width=width).go(address(changes="look-ahead-mask,scale", open=SELF))
    page.locator("[data-entropy=after]").wait_for()
    page.locator("[data-path='decoder.layers.0.self_attention'] .off").wait_for()
    wide = page.evaluate("[...document.querySelectorAll('.head')].map((one) => one.getBoundingClientRect().width)")
    assert min(wide) >= 24


def test_another_model_has_no_changes(visit):
    page = visit().go(address(changes=f"remove@{CROSS}.0"))
    page.get_by_text("This is a changed model").wait_for()
    page.get_by_role("combobox", name="Model").select_option("bert")
    page.get_by_text("This is a changed model").wait_for(state="detached")
    assert "changes=" not in page.url


def test_a_change_that_the_model_refuses_can_be_undone(visit):
    tab = visit()
    tab.allowed.append("422")
    page = tab.go(address(changes="norms@encoder.layers.9"))
    page.get_by_text("the model has no module").first.wait_for()
    page.get_by_role("button", name="Switch everything on again").click()
    page.locator(".figure[data-stored=false] .head img").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_and_a_phone_shows_all(visit, width, scheme):
    if not AXE.exists():
        cannot("axe-core is not installed; run make web")
    view = {"changes": f"positions,scale@{CROSS}.1=0.5", "cells": f"{CROSS}.0.1.2=0.5", "open": CROSS, "word": "t1"}
    page = visit(width=width, height=844, color_scheme=scheme).go(address(**view))
    page.locator("[data-entropy=after]").wait_for()
    page.get_by_role("application", name="Difference: after").wait_for()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run().then((done) => done.violations)")
    assert [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found] == []

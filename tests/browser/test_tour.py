"""The tour: every stop by mouse and by keyboard, and every number that it reveals next to one computed here."""

import itertools
import math
import re
import urllib.parse
from pathlib import Path

import pytest
import torch

import sightline
from serving import cannot, problem, serving
from sightline import what_if
from sightline.model.transformer import build
from sightline.model_folder import BUNDLED
from sightline.trace.explain import logit_lens

ROOT = Path(__file__).parents[2]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RIDDLE = "The animal didn't cross the street because it was too tired."
SENTENCES = {"coref": RIDDLE, "taught": "The old cow could not see the yard."}
TEXT = (ROOT / "docs" / "explanation" / "tour.md").read_text("utf-8")
STOPS = [
    re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
]
ONE_STACK = ["continuing-a-text", "reading-a-text"]
ENCODER = "encoder.layers.0.self_attention"
MASKED = "decoder.layers.0.self_attention"
CROSS = "decoder.layers.0.cross_attention"


@pytest.fixture(scope="module")
def service(folders):
    models = ("coref", *(f"{name}={folders[name]}" for name in ("taught", "gpt", "bert")))
    with serving(*models, "--backend", "torch") as server:
        yield server


@pytest.fixture(scope="module")
def engines(folders):
    found = {"coref": "coref", **{name: folders[name] for name in ("taught", "gpt", "bert")}}
    return {name: sightline.load(folder, device="cpu", backend="torch") for name, folder in found.items()}


def address(stop, **view):
    return "?" + urllib.parse.urlencode({"stop": stop, **view})


def tour(page):
    return page.get_by_role("region", name="Tour", exact=True)


def settled(page):
    page.wait_for_load_state("networkidle")
    page.wait_for_function('() => !document.querySelector("[aria-busy=true]")')


# --- What the model computes, without the page


def words(trace, side):
    return [token.lstrip("▁") or "␣" for token in trace.tokens[side]]


def labelled(tokens):
    """Labels of tokens with letters by position; the same word twice has its position, too."""
    labels = [token.lstrip("▁") for token in tokens]
    plain = [i for i, token in enumerate(tokens) if re.search(r"[^\W\d_]", token) and not re.fullmatch("<.*>", token)]
    return {i: f"{labels[i]} (token {i + 1})" if labels.count(labels[i]) > 1 else labels[i] for i in plain}


def focus_of(trace, side="source"):
    found = words(trace, side)
    letters = list(labelled(trace.tokens[side]))
    return found.index("it") if "it" in found else letters[len(letters) // 2]


def choices(trace):
    """The log-probability of each written token and of the end."""
    end = trace.ids["source"][-1]
    ids = [*trace.ids["target"][1:], end]
    return [trace["logits"].values[i].log_softmax(-1)[id].item() for i, id in enumerate(ids)]  # noqa: A001


def least_sure(trace):
    logs, labels = choices(trace), labelled(trace.tokens["target"][1:])
    at = min(labels, key=lambda i: logs[i])
    return at, labels[at]


def entropy(weights):
    return -(weights * weights.clamp(min=1e-45).log()).sum(-1).mean().item()


def relative(one, other):
    return ((one - other).norm(dim=-1) / one.norm(dim=-1)).tolist()


def turned(engine, text):
    """Compare the encoder's vectors of a sentence and of its reverse, with and without positions. Return the traces."""
    back = " ".join(reversed(text.split()))
    found = {}
    for name, without in (("with", []), ("without", ["positions"])):
        with what_if(engine.model, without=without):
            found[name] = [engine.trace(one) for one in (text, back)]
    tokens = found["with"][0].tokens["source"]
    inner = [i for i, token in enumerate(tokens) if not re.fullmatch("<(?!0x).*>", token)]
    starts = [i for i in inner if i == inner[0] or tokens[i].startswith("▁")]
    groups = [[i for i in inner if a <= i < b] for a, b in itertools.pairwise([*starts, inner[-1] + 1])]
    order = [*range(inner[0]), *itertools.chain(*reversed(groups)), *range(inner[-1] + 1, len(tokens))]
    assert [tokens[i] for i in order] == found["with"][1].tokens["source"]
    apart = {
        name: relative(one["encoder.output"].values[order], other["encoder.output"].values)
        for name, (one, other) in found.items()
    }
    return apart, found["with"][0]


def expected(stop, engine, text):
    """Return the numbers and words that a stop reveals, and its answer."""
    trace = engine.trace(text, beams=1) if stop not in ONE_STACK else engine.trace(text)
    config = engine.model.config
    return globals()[stop.replace("-", "_").replace(",", "")](engine, trace, config, text)


def result(_engine, trace, _config, _text):
    logs, (at, label) = choices(trace), least_sure(trace)
    target = "".join(trace.tokens["target"][1:]).replace("▁", " ").strip()
    facts = {
        "translation": target,
        "first": math.exp(logs[0]),
        "least": math.exp(logs[at]),
        "whole": math.exp(sum(logs)),
    }
    return facts, label


def inside_the_box(_engine, trace, config, _text):
    names = [name for name in trace.names() if name.endswith("_attention.probabilities")]
    heads = sum(trace[name].values.shape[0] for name in names)
    parameters = sum(one.numel() for one in build(config).parameters())
    return {
        "reading": config.encoder.layers,
        "writing": config.decoder.layers,
        "per-attention": config.encoder.heads,
        "heads": heads,
        "parameters": parameters,
    }, heads


def tokens(engine, trace, _config, text):
    ids = trace.ids["source"]
    facts = {"words": len(text.split()), "tokens": len(ids), "ids": " ".join(map(str, ids))}
    return {**facts, "vocabulary": engine.tokenizer.size}, len(ids)


def embeddings(_engine, trace, config, _text):
    rows, at, ids = trace["encoder.embedding.tokens"].values, focus_of(trace), trace.ids["source"]
    pairs = [(i, j) for i in range(len(ids)) for j in range(i) if ids[i] != ids[j]]
    nearest = max(torch.cosine_similarity(rows[i], rows[j], dim=0).item() for i, j in pairs)
    length = rows[at].norm().item()
    facts = {"width": config.d_model, "number": rows[at, 0].item(), "length": length}
    facts |= {"scaled": length * math.sqrt(config.d_model), "nearest": nearest}
    return facts | {"position": trace["encoder.embedding.positions"].values[at].norm().item()}, config.d_model


def positions(engine, trace, _config, text):
    apart, _ = turned(engine, text)
    waves = trace["encoder.embedding.positions"].values
    middle = len(waves) // 2
    assert max(apart["without"]) < 1e-5
    facts = {"without": pytest.approx(0, abs=1e-5), "with": max(apart["with"])}
    return facts | {"start": (waves[0] @ waves[1]).item(), "middle": (waves[middle - 1] @ waves[middle]).item()}, 1


def which_word(engine, trace, config, text):
    at = focus_of(trace)
    layers = [trace[f"encoder.layers.{i}.self_attention.probabilities"].values for i in range(config.encoder.layers)]
    weights = torch.cat([layer[:, at] for layer in layers]).amax(0).tolist()
    labels = {
        i: label
        for i, label in labelled(trace.tokens["source"]).items()
        if i != at and trace.tokens["source"][i][0] == "▁"
    }
    best = sorted(labels, key=lambda i: -weights[i])
    facts = {f"weight-{i}": weights[i] for i in best[:4]}
    if "tired" in text:
        here, there = (engine.translate(one, beams=1)[0].text.split() for one in (text, text.replace("tired", "wide")))
        facts["here"] = " ".join(a for a, b in zip(here, there, strict=True) if a != b)
        facts["there"] = " ".join(b for a, b in zip(here, there, strict=True) if a != b)
    return facts, labels[best[0]]


def query_key_and_value(_engine, trace, config, _text):
    at, d_k = focus_of(trace), config.d_model // config.encoder.heads
    facts = {"width": config.d_model, "heads": config.encoder.heads, "d_k": d_k, "matrix": f"{config.d_model} × {d_k}"}
    return facts | {name: trace[f"{ENCODER}.{name}"].values[0, at, 0].item() for name in "qkv"}, d_k


def from_scores_to_weights(_engine, trace, config, _text):
    at, d_k = focus_of(trace), config.d_model // config.encoder.heads
    q, k, v = (trace[f"{ENCODER}.{name}"].values for name in "qkv")
    scores = q @ k.transpose(-1, -2)
    weights = (scores / math.sqrt(d_k)).softmax(-1)
    key = scores[0, at].argmax().item()
    other = key if key != at else max(at - 1, 0)
    z = weights @ v
    share = weights[0, at, key].item()
    facts = {
        "score": scores[0, at, key].item(),
        "scaled": scores[0, at, key].item() / math.sqrt(d_k),
        "share": share,
        "sum": 1,
    }
    facts |= {"z": z[0, at, 0].item(), "other-z": z[0, other, 0].item()}
    facts |= {"entropy": entropy(weights), "unscaled": entropy(scores.softmax(-1))}
    assert facts["unscaled"] < facts["entropy"]
    return facts, share * 100


def matrices(_engine, trace, config, _text):
    n, m = len(trace.ids["source"]), len(trace.ids["target"])
    shape = f"{n} × {config.d_model // config.encoder.heads}"
    both = config.encoder.heads * config.encoder.layers * n * n + config.decoder.heads * config.decoder.layers * (
        m * m + m * n
    )
    return {"q": shape, "k": shape, "scores": n * n, "layer": config.encoder.heads * n * n, "all": both}, n * n


def heads(engine, trace, config, text):
    path = f"decoder.layers.{config.decoder.layers - 1}.cross_attention"
    target = engine.translate(text, beams=1)[0].text
    whole = engine.score([text], [target])[0].log_prob
    drops = []
    for head in range(config.decoder.heads):
        with what_if(engine.model, remove_heads={path: [head]}):
            drops.append(engine.score([text], [target])[0].log_prob - whole)
    worst = min(range(len(drops)), key=drops.__getitem__)
    facts = {"whole": whole, "concat": config.d_model, **{f"drop-{i}": drop for i, drop in enumerate(drops)}}
    return facts, f"Head {worst + 1}"


def add_and_norm(_engine, trace, config, _text):
    at = focus_of(trace)
    other = at - 1
    x, added = (trace[f"{ENCODER}_residual.{name}"].values for name in ("input", "sublayer"))
    read = trace[f"{ENCODER}_residual.norm.input"].values
    ratio = (added[at].norm() / x[at].norm()).item()
    mean, variance = read.mean(-1).tolist(), read.var(-1, correction=0).tolist()
    facts = {"old": x[at].norm().item(), "added": added[at].norm().item(), "ratio": ratio}
    facts |= {"mean": mean[at], "variance": variance[at], "other-mean": mean[other], "other-variance": variance[other]}
    return facts | {"after": variance[at] / (variance[at] + config.norm_epsilon)}, ratio * 100


def feed_forward(_engine, trace, config, _text):
    at = focus_of(trace)
    units = trace["encoder.layers.0.feed_forward.units"].values
    active = units > 0
    share = active[at].float().mean().item()
    facts = {"units": units.shape[1], "active": active[at].sum().item(), "share": share}
    facts |= {"both": (active[at] & active[at - 1]).sum().item(), "strongest": units[at].max().item()}
    return facts | {"matrices": 2 * config.d_model * units.shape[1], "attention": 4 * config.d_model**2}, share * 100


def layer_by_layer(engine, trace, config, _text):
    at, _ = least_sure(trace)
    probabilities = logit_lens(trace, engine.model, "decoder").values[:, at].softmax(-1)
    tops = probabilities.argmax(-1).tolist()
    first = next(i for i in range(len(tops)) if set(tops[i:]) == {tops[-1]})
    start = trace["decoder.embedding.output"].values[at]
    outputs = [
        trace[f"decoder.layers.{i}.feed_forward_residual.output"].values[at] for i in range(config.decoder.layers)
    ]
    facts = {f"lens-{i}": probabilities[i, top].item() for i, top in enumerate(tops)}
    facts |= {f"cosine-{i + 1}": torch.cosine_similarity(start, one, dim=0).item() for i, one in enumerate(outputs)}
    return facts, f"After layer {first}" if first else "After the embedding"


def start_and_mask(engine, trace, _config, text):
    target = engine.translate(text, beams=1)[0].text
    n = len(trace.ids["target"])
    nats = []
    for without in ([], ["look-ahead-mask"]):
        with what_if(engine.model, without=without):
            log_probs = engine.score([text], [target])[0].log_probs
            nats.append(-sum(log_probs) / len(log_probs))
    assert trace[f"{MASKED}.probabilities"].values.triu(1).max() == 0
    facts = {
        "start": trace.tokens["target"][0],
        "cells": n * (n - 1) // 2,
        "future": 0,
        "with": nats[0],
        "without": nats[1],
    }
    return facts, 2 if nats[1] > nats[0] else 0


def cross_attention(engine, trace, _config, _text):
    source, target = len(trace.ids["source"]), len(trace.ids["target"])
    layer = engine.model.decoder.layers[0].cross_attention
    w_k = layer.key_value.weight.unflatten(0, (2, -1))[0]
    product = (trace["encoder.output"].values[0] @ w_k[0]).item()
    first, second = (trace[f"decoder.layers.{i}.cross_attention.k"].values[0, 0, 0].item() for i in (0, 1))
    assert first == pytest.approx(product, rel=1e-4)
    facts = {"source": source, "target": target, "q": target, "k": source, "v": source}
    return facts | {"first": first, "product": product, "second": second}, 1


def next_word(engine, trace, _config, _text):
    logits = trace["logits"].values[least_sure(trace)[0]]
    best = logits.argmax().item()
    normal, bold, careful = ((logits / temperature).softmax(-1) for temperature in (1, 2, 0.5))
    count = (normal.sort(descending=True).values.cumsum(0) < 0.9).sum().item() + 1
    facts = {
        "entries": len(logits),
        "likeliest": engine.tokenizer.pieces([best])[0].lstrip("▁"),
        "logit": logits[best].item(),
    }
    facts |= {"normal": normal[best].item(), "bold": bold[best].item(), "careful": careful[best].item(), "top-p": count}
    return facts, bold[best].item() * 100


def the_loop(_engine, trace, _config, _text):
    n = len(trace.ids["target"])
    return {"reading": 1, "writing": n, "cached": n, "uncached": n * (n + 1) // 2}, n


def beams(engine, _trace, _config, text):
    one, four = (engine.translate(text, beams=beams)[0] for beams in (1, 4))
    facts = {"greedy": one.text, "greedy-score": one.score, "wide": four.text, "wide-score": four.score}
    return facts, 0 if one.text == four.text else 1 if four.score > one.score else 2


def training(_engine, _trace, _config, _text):
    right = {RIDDLE: "Das Tier überquerte die Straße nicht, weil es zu müde war."}
    right[RIDDLE.replace("tired", "wide")] = "Das Tier überquerte die Straße nicht, weil sie zu breit war."
    facts, solved = {}, {}
    for folder in sorted((BUNDLED / "coref" / "states").iterdir()):
        step, model = int(folder.name[5:]), sightline.load(folder, device="cpu", backend="torch")
        texts = [model.translate(source, beams=1)[0].text for source in right]
        facts[f"state-{step}"] = texts[0] if len(texts[0]) <= 70 else f"{texts[0][:69]}…"
        solved[step] = texts == [*right.values()]
    facts["step"] = next(step for step in solved if all(ok for later, ok in solved.items() if later >= step))
    return facts, 0 if facts["step"] < 80 else 1


def quiz(*_):
    return {}, 7


def continuing_a_text(engine, trace, config, _text):
    probabilities = trace["logits"].values[-1].softmax(-1)
    best = probabilities.argmax().item()
    piece = engine.tokenizer.pieces([best])[0]
    facts = {
        "layers": config.decoder.layers,
        "next": re.sub("^▁", "", piece),
        "probability": probabilities[best].item(),
    }
    return facts | {"future": 0}, probabilities[best].item() * 100


def reading_a_text(engine, trace, _config, text):
    apart, base = turned(engine, text)
    future = base[f"{ENCODER}.probabilities"].values.triu(1).max().item()
    probabilities = base["logits"].values[focus_of(base)].softmax(-1)
    facts = {"without": pytest.approx(0, abs=1e-5), "with": apart["with"][0], "future": future}
    assert apart["without"][0] < 1e-5 < apart["with"][0]
    return facts | {"guess": probabilities.max().item()}, 0


# --- The page


def percent(share):
    value = share * 100
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{'100' if value >= 99.95 else f'{value:.0f}' if value >= 10 else f'{value:.1f}'} %"


def compare(page, facts, answer):
    """Compare what the page reveals with what the model computes here."""
    found = tour(page).locator("[data-fact]")
    values = dict(found.evaluate_all("(all) => all.map((one) => [one.dataset.fact, one.dataset.value])"))
    texts = dict(zip(values, found.all_inner_texts(), strict=True))
    assert values.keys() == facts.keys()
    for name, value in facts.items():
        if isinstance(value, str):
            assert texts[name].strip() == values[name] == value, name
            continue
        assert float(values[name]) == (
            pytest.approx(value, rel=2e-3, abs=2e-5) if isinstance(value, int | float) else value
        ), name
        plain = texts[name].strip().replace("\u2212", "-").replace(",", "")
        if "%" in plain:  # as it is written, from the value that was just compared
            assert plain == percent(float(values[name])), name
        else:
            assert float(plain) == pytest.approx(float(values[name]), rel=1e-3, abs=1e-9), name
    said = tour(page).locator("[data-answer]").get_attribute("data-answer")
    assert said == answer if isinstance(answer, str) else float(said) == pytest.approx(answer, rel=2e-3, abs=1e-3)


def reveal(page):
    tour(page).get_by_role("button", name="Show without a prediction").click()
    tour(page).locator("[data-answer]").wait_for()


@pytest.mark.parametrize("model", SENTENCES)
def test_every_number_of_every_stop_is_the_models(visit, service, engines, model):
    text = SENTENCES[model]
    page = visit(url=service.url).go(address(STOPS[0], model=model, text=text))
    for stop in STOPS:
        if stop in ONE_STACK:
            continue
        page.wait_for_url(re.compile(f"stop={stop}(&|$)"), timeout=15_000)
        reveal(page)
        compare(page, *expected(stop, engines[model], text))
        if stop == "which-word" and model == "taught":
            assert "exchange" in tour(page).locator("[data-otherwise]").inner_text()
        elif stop not in ("start-and-mask", "cross-attention"):
            assert tour(page).locator("[data-otherwise]").count() == 0, stop
        after = next((one for one in STOPS[STOPS.index(stop) + 1 :] if one not in ONE_STACK), None)
        if after == STOPS[(STOPS.index(stop) + 1) % len(STOPS)]:
            tour(page).get_by_role("button", name="Next:").click()
        elif after:
            page.goto(f"{service.url}/{address(after, model=model, text=text)}")


@pytest.mark.parametrize(
    ("stop", "model", "text"),
    [
        ("continuing-a-text", "gpt", "The old cow"),
        ("reading-a-text", "bert", "The dog loved it"),
        ("reading-a-text", "bert", "Qian kill you"),
    ],
)
def test_stops_of_models_with_one_stack(visit, service, engines, stop, model, text):
    page = visit(url=service.url).go(address(stop, model=model, text=text))
    reveal(page)
    compare(page, *expected(stop, engines[model], text))
    DO[stop](Hand(page, keys=False), page)
    tour(page).get_by_text("✓ Done").wait_for()


def test_stops_appear_when_a_model_of_their_task_is_served(visit, service, folders):
    page = visit(url=service.url).go("?room=tour")
    assert page.locator("ol li").count() == len(STOPS)
    with serving(f"gpt={folders['gpt']}", "--backend", "torch") as server:
        page = visit(url=server.url).go("?room=tour")
        page.locator("ol li").first.wait_for()
        assert page.locator("ol strong").all_inner_texts() == ["Continuing a text"]
    page = visit(url=service.url).go(address("continuing-a-text", model="coref", text="The old cow"))
    page.get_by_role("button", name="Use one that can do it").click()
    page.get_by_role("button", name="Show without a prediction").wait_for()
    assert "model=gpt" in page.url


class Hand:
    """Uses a control by mouse, or by keys alone."""

    def __init__(self, page, keys):
        self.page, self.keys = page, keys

    def press(self, control):
        if not self.keys:
            return control.click()
        control.focus()
        return self.page.keyboard.press("Enter")

    def write(self, control, text):
        if not self.keys:
            return control.fill(text)
        control.focus()
        self.page.keyboard.press("Control+a")
        return self.page.keyboard.type(text)

    def slide(self, control, to):
        """Move a slider by keys in both cases: a mouse has no exact position."""
        control.focus()
        self.page.keyboard.press("Home")
        for _ in range(to):
            self.page.keyboard.press("ArrowRight")

    def reach(self, name):
        """Press Tab until a button of the tour has the focus."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.textContent.trim()").startswith(name):
                return
        raise AssertionError(name)


def predict(hand, page):
    """Predict something, and wait for the answer."""
    form = tour(page)
    settled(page)
    if hand.keys:  # the heading has the focus, and the prediction is next to it
        hand.reach("Check") if form.locator("form").count() else None
    if form.get_by_role("textbox").count():
        hand.write(form.get_by_role("textbox"), "7")
        page.keyboard.press("Enter")
    elif form.get_by_role("slider").count():
        hand.slide(form.get_by_role("slider").first, 40)
        hand.press(form.get_by_role("button", name="Check"))
    else:
        hand.press(form.locator(".options button").first)
    form.locator("[data-answer]").wait_for()


def box(page, path):
    return page.locator(f'[data-path="{path}"]')


def first_number(page, title):
    """The number that a vector of the glass shows."""
    step = page.locator(".step").filter(has=page.locator("strong", has_text=re.compile(f"^{title}$")))
    return step.get_by_title("Explain this number")


def switch(name):
    return lambda hand, page: hand.press(page.get_by_role("button", name=name, exact=True))


def sentence(text):
    return lambda hand, page: hand.write(page.get_by_role("textbox", name="Your text"), text)


def choose_another_word(hand, page):
    hand.press(page.locator("[data-word]").nth(1))
    hand.press(page.get_by_role("dialog").get_by_role("button").filter(has_text="%").first)


def shuffle_without_positions(hand, page):
    switch("Positions")(hand, page)
    hand.press(page.get_by_role("button", name="Shuffle the words"))


def choose_a_cell(hand, page):
    cells = page.get_by_role("application")
    hand.press(cells) if not hand.keys else cells.focus()
    page.keyboard.press("ArrowRight")


def sample(_hand, page):
    page.get_by_role("switch").focus()
    page.keyboard.press("Space")
    page.get_by_role("slider", name="Temperature").focus()
    page.keyboard.press("ArrowRight")


def continue_the_text(hand, page):
    text = page.get_by_role("textbox", name="Your text")
    hand.write(text, f"{text.input_value()} loved")


def reverse_without_positions(hand, page):
    switch("Positions")(hand, page)
    hand.press(page.get_by_role("button", name="Reverse the words"))


def force_a_beginning(hand, page):
    if hand.keys:
        page.get_by_role("tree").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")  # moves the focus to the button
        page.keyboard.press("Enter")
    else:
        page.locator("[data-node='1']").click()
        page.get_by_role("button", name="Continue from here").click()


def move_over_states(hand, page):
    hand.slide(tour(page).get_by_role("slider"), 1)
    page.locator("[data-state='40']").wait_for()


def answer_the_quiz(hand, page):
    for question in tour(page).locator("ol .options").all():
        hand.press(question.get_by_role("button").first)


DO = {
    "result": choose_another_word,
    "inside-the-box": switch("Step back"),
    "tokens": sentence("The unquestionableness."),
    "embeddings": lambda hand, page: hand.press(
        box(page, "encoder.embedding").get_by_title("Explain this number").first
    ),
    "positions": shuffle_without_positions,
    "which-word": sentence(RIDDLE.replace("tired", "wide")),
    "query-key-and-value": lambda hand, page: hand.press(first_number(page, "q")),
    "from-scores-to-weights": switch("÷ √dₖ"),
    "matrices": choose_a_cell,
    "heads": lambda _, page: page.locator(".controls select").select_option("removed"),
    "add-and-norm": lambda hand, page: hand.press(page.locator("main").get_by_label("Explain variance").first),
    "feed-forward": lambda hand, page: hand.press(page.locator("main").get_by_label("Explain unit").first),
    "layer-by-layer": lambda hand, page: hand.press(
        page.get_by_role("group", name="Output").get_by_role("button").nth(2)
    ),
    "start-and-mask": switch("Look-ahead mask"),
    "cross-attention": lambda hand, page: hand.press(first_number(page, "k")),
    "next-word": sample,
    "the-loop": lambda hand, page: hand.slide(page.get_by_role("slider", name="Step"), 6),
    "beams": force_a_beginning,
    "training": move_over_states,
    "continuing-a-text": continue_the_text,
    "reading-a-text": reverse_without_positions,
    "quiz": answer_the_quiz,
}
"""The task of each stop, done in the room."""


@pytest.mark.parametrize("way", ["mouse", "keys", "phone"])
def test_the_whole_tour(visit, service, way):
    width = {"phone": 390}.get(way, 1400)
    page = visit(url=service.url, width=width, height=900, has_touch=way == "phone").go("?room=tour")
    hand = Hand(page, keys=way == "keys")
    hand.press(page.get_by_role("button", name="Start", exact=True))
    for stop in STOPS:
        page.wait_for_url(re.compile(f"stop={stop}(&|$)"), timeout=15_000)
        form = tour(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        predict(hand, page)
        DO[stop](hand, page)
        form.get_by_text("✓ Done").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, stop
        if stop == STOPS[-1]:
            break
        if hand.keys:
            form.get_by_role("heading", level=2).focus()
            hand.reach("Next:")
            page.keyboard.press("Enter")
        else:
            form.get_by_role("button", name="Next:").click()
    hand.press(tour(page).get_by_role("button", name="All stops"))
    page.get_by_text(f"{len(STOPS)} of {len(STOPS)} stops completed").wait_for()
    page.reload()
    page.get_by_text(f"{len(STOPS)} of {len(STOPS)} stops completed").wait_for()
    assert page.get_by_text("✓ Completed").count() == len(STOPS)
    page.get_by_role("button", name="Start over").click()
    page.get_by_role("button", name="Start", exact=True).wait_for()
    assert page.get_by_text("✓ Completed").count() == 0


def test_leave_into_the_glass_and_come_back(visit, service):
    page = visit(url=service.url).go(address("embeddings", model="coref", text="The old cow could not see the yard."))
    reveal(page)
    page.get_by_role("navigation").get_by_role("button", name="Beams").click()
    page.get_by_text("You left the view of this stop").wait_for()
    page.get_by_role("button", name="Show it again").click()
    page.locator('[data-path="encoder.embedding"] .waves').wait_for()
    tour(page).get_by_role("button", name="Leave").click()
    tour(page).wait_for(state="detached")
    page.locator('[data-path="encoder.embedding"] .waves').wait_for()  # the room stays as it is
    page.go_back()
    tour(page).wait_for()
    tour(page).get_by_role("button", name="Leave").click()
    page.get_by_role("navigation").get_by_role("button", name="Tour").click()
    page.get_by_role("button", name="Continue: Embeddings").click()
    page.locator('[data-path="encoder.embedding"] .waves').wait_for()
    tour(page).locator("[data-answer]").wait_for()  # the prediction was kept
    assert "old+cow" in page.url


def test_a_link_opens_a_stop_with_a_sentence(visit, service):
    text = "The old cow could not see the yard."
    page = visit(url=service.url, permissions=["clipboard-read", "clipboard-write"]).go(
        address("cross-attention", text=text)
    )
    page.locator('[data-path="decoder.layers.0.cross_attention"] .panel').wait_for()
    assert page.get_by_role("textbox", name="Your text").input_value() == text
    page.get_by_role("button", name="Copy a link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    other = visit(url=service.url).go(link.removeprefix(f"{service.url}/"))
    other.locator('[data-path="decoder.layers.0.cross_attention"] .panel').wait_for()
    assert other.get_by_role("textbox", name="Your text").input_value() == text
    # A longer link is opened as it is.
    page = visit(url=service.url).go(address("cross-attention", text=text, room="glass", open="encoder.embedding"))
    page.locator('[data-path="encoder.embedding"] .waves').wait_for()
    assert page.locator('[data-path="decoder.layers.0.cross_attention"] .panel').count() == 0


def test_a_stop_that_does_not_hold_offers_the_bundled_model_and_sentence(visit, service):
    page = visit(url=service.url).go(
        address("which-word", model="taught", text="Yesterday the bear crossed the brown field.")
    )
    reveal(page)
    tour(page).locator("[data-otherwise]").wait_for()
    tour(page).get_by_role("button", name="Use the bundled model and sentence").click()
    tour(page).locator("[data-fact=there]").wait_for()
    assert tour(page).locator("[data-otherwise]").count() == 0
    assert "model=coref" in page.url


def test_a_right_answer_in_the_quiz_and_a_wrong_one(visit, service, engines):
    page = visit(url=service.url).go(address("quiz", model="coref", text=RIDDLE))
    reveal(page)
    trace = engines["coref"].trace(RIDDLE, beams=1)
    n = len(trace.ids["source"])
    questions = tour(page).locator("ol > li")
    questions.nth(0).get_by_role("button", name=str(n), exact=True).click()
    assert questions.nth(0).get_by_role("button", name=f"{n} ✓").count() == 1
    looks = trace[f"{ENCODER}.probabilities"].values[0, focus_of(trace)]
    best = looks.argmax().item()
    label = f"{words(trace, 'source')[best]} (token {best + 1})"
    questions.nth(4).get_by_role("button", name=label, exact=True).click()
    assert questions.nth(4).get_by_role("button", name=f"{label} ✓").count() == 1
    wrong = str(n * 2)
    questions.nth(3).get_by_role("button", name=wrong, exact=True).click()
    assert questions.nth(3).get_by_role("button", name=f"{n * n} ✓").count() == 1
    questions.nth(3).get_by_role("button", name="Go to its stop").click()
    page.get_by_text("Is all this done word by word?").wait_for()


def test_cards_for_anki(visit, service):
    page = visit(url=service.url).go("?room=tour")
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the cards for Anki").click()
    rows = Path(started.value.path()).read_text("utf-8").splitlines()
    cards = [row.split("\t") for row in rows if not row.startswith("#")]
    assert len(cards) == len(re.findall(r"^\*Card\.\*", TEXT, re.MULTILINE))
    assert {tag for _, _, tag in cards} <= set(STOPS)
    assert all(question.endswith("?") and answer.endswith(".") for question, answer, _ in cards)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit, service, scheme):
    if not AXE.exists():
        cannot("axe-core is not installed; run make web")
    page = visit(url=service.url, color_scheme=scheme, reduced_motion="reduce").go("?room=tour&model=coref")
    for stop in ["", "result", "positions", "query-key-and-value", "beams", "training", "quiz"]:
        if stop:
            page.goto(f"{service.url}/{address(stop, model='coref')}")
            reveal(page)
        settled(page)
        page.evaluate(AXE.read_text("utf-8"))
        found = page.evaluate("axe.run().then((done) => done.violations)")
        assert [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found] == [], stop


def test_the_text_is_loaded_when_the_tour_is_opened(visit, service):
    tab, scripts = visit(url=service.url), []
    tab.page.on("response", lambda answer: scripts.append(answer) if answer.url.endswith(".js") else None)
    page = tab.go("?room=glass")
    page.locator(".figure[data-stored=false]").wait_for()
    key = "Cheating must be learned"
    assert not any(key in script.text() for script in scripts)
    page.get_by_role("navigation").get_by_role("button", name="Tour").click()
    page.get_by_role("button", name="Start", exact=True).wait_for()
    assert any(key in script.text() for script in scripts)


# --- Training


def test_a_reader_trains_a_model(visit):
    with serving("coref", "--backend", "torch") as server:
        page = visit(url=server.url).go(address("training"))
        reveal(page)
        page.get_by_text("These states are stored").wait_for()
        page.get_by_role("button", name="Train a model now").click()
        page.get_by_role("status").filter(has_text=re.compile("step [1-9]")).wait_for()
        # Leaving and returning lose nothing.
        tour(page).get_by_role("button", name="Leave").click()
        page.get_by_role("navigation").get_by_role("button", name="Tour").click()
        page.get_by_role("button", name="Continue: Training").click()
        page.locator("[data-state='0']").wait_for()
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_text("Stopped at step").wait_for()
        status = server.get("/v1/training").json()
        assert status["losses"][0]["step"] == 10
        assert status["states"][0] == {"step": 0, "model": "training@0"}
        page.get_by_role("button", name="Open this state in the glass").click()
        page.get_by_text(f"Computed by {status['states'][-1]['model']}").wait_for()
        # The next stop is about the served model again.
        tour(page).get_by_role("button", name="Next:").click()
        page.get_by_text("Computed by coref").wait_for()


def test_a_service_that_does_not_allow_training_shows_stored_states(visit):
    with serving("coref", "--backend", "torch", "--no-training") as server:
        page = visit(url=server.url).go(address("training"))
        reveal(page)
        page.get_by_text("does not allow training").wait_for()
        assert page.get_by_role("button", name="Train a model now").count() == 0
        problem(server.post("/v1/training/start", {}), 403, "forbidden", "training")

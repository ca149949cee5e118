"""The Glass room, by mouse and by keyboard: figure 1 with the numbers of a text."""

import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from transformers import BertConfig, BertForMaskedLM

import sightline
from serving import serving
from sightline.config import ModelConfig
from sightline.data.builtin import generate, riddle
from sightline.engine import load
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.model.transformer import build
from sightline.model_folder import save_model
from sightline.text.dialogue import ROLE_TOKENS
from sightline.text.tokenizer import Tokenizer
from sightline.trace.pack import read_trace
from support import random_weights

WEB = Path(__file__).parents[2] / "web"
TEXT, TARGET = "The animal was too tired.", "Das Tier war zu müde."


def address(**view):
    return "?" + urllib.parse.urlencode({"room": "glass", "text": TEXT, "target": TARGET, **view})


@pytest.fixture(scope="module")
def trace(taught):
    return sightline.load(taught, device="cpu", backend="torch").trace(TEXT, TARGET)


def number(text):
    return float(text.strip().replace("\u2212", "-"))


def drawn(page, stored="false"):
    page.locator(f".figure[data-stored={stored}] .head img").first.wait_for()
    page.wait_for_function("() => [...document.querySelectorAll('.head')].every((one) => one.querySelector('img'))")


def test_all_heads_of_all_attentions_are_drawn_with_their_weights(visit, trace):
    page = visit().go(address())
    drawn(page)
    names = [name for name in trace.names() if name.endswith("_attention.probabilities")]
    assert page.locator(".head img").count() == sum(trace[name].values.shape[0] for name in names)
    pictures = page.evaluate(
        """() => Promise.all([...document.querySelectorAll(".heads")].map(async (one) => {
          const image = one.querySelector("img");
          await image.decode();
          const { naturalWidth: wide, naturalHeight: high } = image;
          const drawing = new OffscreenCanvas(wide, high).getContext("2d");
          drawing.drawImage(image, 0, 0);
          return { wide, high, data: [...drawing.getImageData(0, 0, wide, high).data].filter((_, i) => i % 4 === 0) };
        }))"""
    )
    # From top to bottom: the encoder's layers, the last first; then the decoder's, in each cross-attention above.
    shown = [f"encoder.layers.{i}.self_attention" for i in (1, 0)]
    shown += [f"decoder.layers.{i}.{kind}_attention" for i in (1, 0) for kind in ("cross", "self")]
    for name, picture in zip(shown, pictures, strict=True):
        weights = trace[f"{name}.probabilities"].numpy()[0]
        assert (picture["high"], picture["wide"]) == weights.shape
        reds = np.array(picture["data"], float).reshape(weights.shape)  # less of it, the heavier the weight
        expected = 255 + (0x2F - 255) * np.sqrt(weights)
        assert np.abs(reds - expected).max() <= 1.5


@pytest.mark.parametrize(
    ("model", "stack", "prediction"), [("gpt", "Decoder", "Prediction after"), ("bert", "Encoder", "Prediction at")]
)
def test_a_model_of_one_stack_is_the_same_scene_with_one_column(visit, folders, model, stack, prediction):
    seen = load(folders[model], device="cpu").trace(TEXT)
    page = visit().go(address(model=model, target=""))
    drawn(page)
    assert page.get_by_role("heading", level=2).all_inner_texts() == [stack]
    (tokens,) = seen.tokens.values()
    words = page.get_by_role("group", name="Input").get_by_role("button")
    assert words.all_inner_texts() == [word.lstrip("▁") or "␣" for word in tokens]
    words.last.click()
    page.get_by_role("button", name="Linear & softmax").click()
    page.get_by_text(prediction).wait_for()
    best = seen["logits"].values[-1].topk(10).indices.tolist()
    shown = page.get_by_role("row").filter(has=page.get_by_role("rowheader"))
    shown.nth(9).wait_for()
    links = shown.get_by_role("cell").first
    assert shown.count() == len(best)
    assert abs(number(links.inner_text()) - seen["logits"].values[-1, best[0]].item()) <= 1e-4


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Dialogue models of both architectures and an imported BERT, with random weights."""
    folder = tmp_path_factory.mktemp("others")
    lines = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(lines, 500, [*ROLE_TOKENS.values()])
    stack = {"layers": 2, "heads": 2, "d_ff": 24}
    for name in ("encoder-decoder", "decoder-only"):
        config = {"architecture": name, "vocab_size": tokenizer.size, "d_model": 16}
        model = build(ModelConfig(**config, encoder=stack, decoder=stack))
        save_model(random_weights(model), folder / name, tokenizer, task="chat")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "sleeps", "."]
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    BertForMaskedLM(BertConfig(vocab_size=len(entries), **size)).save_pretrained(folder / "theirs")
    (folder / "theirs" / "vocab.txt").write_text("\n".join(entries))
    bert, vocabulary = read_hugging_face(folder / "theirs")
    save_model(bert, folder / "bert", vocabulary)
    return {name: folder / name for name in ("encoder-decoder", "decoder-only", "bert")}


def test_dialogue_models_and_an_imported_bert_open(visit, others):
    with serving(*others.values()) as server:
        for name, text in {"encoder-decoder": "Hello", "decoder-only": "Hello", "bert": "The [MASK] sleeps."}.items():
            seen = load(others[name], device="cpu").trace(text)
            page = visit(url=server.url).go(address(model=name, text=text, target=""))
            drawn(page)
            for side, tokens in seen.tokens.items():
                label = "Output" if side == "target" and "source" in seen.tokens else "Input"
                words = page.get_by_role("group", name=label).get_by_role("button")
                assert words.all_inner_texts() == [word.lstrip("▁") or "␣" for word in tokens]
            assert page.locator(".problem").count() == 0


def test_a_stored_trace_is_shown_until_the_model_answers(visit, trace):
    tab, held = visit(), []
    tab.page.route("**/v1/trace", lambda route: held.append(route))  # noqa: PLW0108 - playwright marks its handlers
    page = tab.go(address(target=""))
    drawn(page, stored="true")
    status = page.get_by_text("The model is computing")
    assert "coref" in status.inner_text()
    assert "Computed by coref" in page.locator("footer").inner_text()
    words = page.get_by_role("group", name="Input").get_by_role("button").all_inner_texts()
    packed = read_trace(WEB / "src" / "trace" / "stored.bin")
    assert words == [word.lstrip("▁") for word in packed.tokens["source"]]
    page.get_by_role("group", name="Input").get_by_role("button").nth(9).hover()
    assert "9" in page.evaluate("[...document.querySelectorAll('.heads .frames')].map((one) => one.dataset.row)")
    held[0].continue_()
    status.wait_for(state="detached")
    drawn(page)
    words = page.get_by_role("group", name="Input").get_by_role("button").all_inner_texts()
    assert words == [word.lstrip("▁") for word in trace.tokens["source"]]


def test_an_open_box_says_that_the_stored_trace_does_not_contain_its_numbers(visit):
    tab, held = visit(), []
    tab.page.route("**/v1/trace", lambda route: held.append(route))  # noqa: PLW0108 - playwright marks its handlers
    page = tab.go(address(target="", open="encoder.layers.1.self_attention_residual.sum"))
    drawn(page, stored="true")
    page.get_by_text("does not contain these numbers").wait_for()
    held[0].continue_()
    drawn(page)
    page.locator(".body .step").first.wait_for()


def test_the_stored_trace_is_what_the_shipped_model_computes():
    packed, pair = read_trace(WEB / "src" / "trace" / "stored.bin"), riddle()[0]
    trace = sightline.load("coref", device="cpu", backend="torch").trace(pair.source, pair.target)
    assert packed.tokens == trace.tokens
    assert packed.names() == [name for name in trace.names() if name.endswith("attention.probabilities")]
    for name in packed.names():
        assert np.abs(packed[name].numpy() - trace[name].numpy()).max() <= 1e-3


def test_pointing_at_a_word_follows_it_everywhere(visit, trace):
    page = visit().go(address())
    drawn(page)
    word = page.get_by_role("group", name="Output").get_by_role("button").nth(3)
    word.hover()
    rows = page.evaluate("[...document.querySelectorAll('.heads .frames')].map((one) => one.dataset.row)")
    assert rows == ["-1"] * 2 + ["3"] * 4  # not the encoder's; the decoder's to itself and to the source
    shades = page.evaluate(
        """() => [...document.querySelectorAll("[aria-label=Input] .word")].map(
          (one) => Number(one.style.getPropertyValue("--shade")))"""
    )
    cross = [trace[f"decoder.layers.{i}.cross_attention.probabilities"].numpy()[:, 3] for i in (0, 1)]
    mean = np.concatenate(cross).mean(0)
    assert np.abs(np.array(shades) - mean / mean.max()).max() <= 1 / 40 + 6e-3  # in twentieths, from half precision


def test_a_head_opens_in_place_down_to_one_number(visit, trace):
    tab = visit()
    page = tab.go(address(word="t3"))
    drawn(page)
    layer = page.get_by_role("article", name="decoder layer 2")
    layer.get_by_role("button", name="Head 2").first.click()
    page.get_by_text("”, head 2").wait_for()
    path = "decoder.layers.1.cross_attention"
    weights = trace[f"{path}.probabilities"].numpy()[1, 3]
    cells = layer.get_by_role("button", name="probabilities")
    shown = [float(text.replace("\u2212", "-")) for text in cells.all_inner_texts()]
    assert np.abs(np.array(shown) - weights).max() < 1e-4
    cells.nth(int(weights.argmax())).click()
    panel = page.get_by_role("region", name="Explanation of a number")
    panel.wait_for()
    assert panel.get_attribute("data-kind") == "softmax"
    panel.get_by_role("button").nth(1).click()  # the first score that it comes from
    page.wait_for_selector("[data-kind=mask]")
    page.go_back()
    page.wait_for_selector("[data-kind=softmax]")
    page.keyboard.press("Escape")
    assert panel.count() == 0


def test_everything_is_reached_by_keyboard(visit):
    page = visit().go(address())
    drawn(page)
    words = page.get_by_role("group", name="Input").get_by_role("button")
    words.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "word=s2" in page.url
    page.get_by_role("article", name="encoder layer 1").get_by_role("button", name="Self-attention").focus()
    page.keyboard.press("Enter")
    matrix = page.get_by_role("application")
    matrix.wait_for()
    matrix.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "word=s3" in page.url
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-kind=softmax]")
    strip = page.get_by_role("slider", name="Concat")
    strip.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector('[data-node$=".concat"]')
    assert strip.get_attribute("aria-valuenow") == strip.get_attribute("aria-valuemax")


def test_the_animation_shows_each_step_and_the_cache(visit, trace):
    page = visit().go(address())
    drawn(page)
    clock = page.get_by_role("slider", name="Step")
    last = 2 + 1 + len(trace.tokens["target"])
    assert clock.get_attribute("max") == str(last)
    clock.focus()
    page.keyboard.press("Home")
    assert "Nothing is computed yet" in page.locator(".description").inner_text()
    for _ in range(5):
        page.get_by_role("button", name="Step forward").click()
    assert "step=5" in page.url
    assert "Keys and values of 1 earlier token are reused" in page.locator(".description").inner_text()
    assert page.get_by_role("group", name="Output").locator(".ahead").count() == len(trace.tokens["target"]) - 2
    page.get_by_role("button", name="Play").click()
    page.get_by_text("All steps are computed").wait_for()
    assert "step=" not in page.url


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("taught", "decoder.layers.1.cross_attention"),
        ("taught", "decoder.layers.0.feed_forward"),
        ("taught", "decoder.embedding"),
        ("taught", "output"),
        ("gpt", "decoder.layers.0.self_attention"),
        ("gpt", "decoder.layers.0.self_attention_residual"),
    ],
)
def test_an_open_box_is_empty_until_its_step(visit, model, part):
    page = visit().go(address(model=model, open=part, step=0, **({} if model == "taught" else {"target": ""})))
    drawn(page)
    body = page.locator(".body")
    waits = body.get_by_text("Not computed yet at this step")
    waits.wait_for()
    assert body.get_by_role("slider").count() == body.locator("td").count() == 0
    body.get_by_role("button", name="Go to step").click()
    body.get_by_role("slider").or_(body.locator("td")).first.wait_for()
    page.get_by_role("slider", name="Step").fill("0")
    waits.wait_for()
    page.get_by_role("button", name="Play").click()
    page.get_by_text("All steps are computed").wait_for()
    body.get_by_role("slider").or_(body.locator("td")).first.wait_for()


def test_an_unread_word_has_no_row(visit, trace):
    page = visit().go(address(word="t4", step=2 + 1 + 3, open="decoder.layers.0.self_attention"))
    drawn(page)
    page.get_by_text("is not read yet at this step").wait_for()
    page.get_by_role("button", name="Go to step").click()
    page.get_by_text("”, head 1").wait_for()
    assert f"step={2 + 1 + 5}" in page.url
    assert page.locator(".body .grid .rows span").count() == 5
    assert len(trace.tokens["target"]) > 5


def test_the_first_step_dims_all_boxes_and_the_last_names_the_end(visit, trace):
    page = visit().go(address(step=0))
    drawn(page)
    assert page.locator(".box.ahead").count() == page.locator(".box").count() > 0
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("End")
    last = trace.tokens["target"][-1].lstrip("▁")
    page.get_by_text(f"“{last}” is read, the end follows. All steps are computed.").wait_for()
    assert page.locator(".box.ahead").count() == 0


@pytest.mark.parametrize("word", ["t9", ""])
def test_another_sentence_is_shown_in_the_attention_that_is_open(visit, word):
    long = "The animal did not cross the street because it was too tired."
    page = visit().go(address(text=long, target="", word=word, open="decoder.layers.0.cross_attention"))
    drawn(page)
    page.get_by_text("”, head 1").wait_for()
    rows = page.locator(".body tbody tr")
    before = rows.count()
    page.get_by_role("textbox").fill("The dog slept.")
    page.wait_for_function("(n) => document.querySelectorAll('[aria-label=Input] .word').length < n", arg=before)
    drawn(page)
    words = page.get_by_role("group", name="Input").get_by_role("button").all_inner_texts()
    page.wait_for_function("(n) => document.querySelectorAll('.body tbody tr').length === n", arg=len(words))
    assert rows.get_by_role("rowheader").all_inner_texts() == words
    wide = page.evaluate(
        "[...document.querySelectorAll('.figure > :last-child .head img')].map((one) => one.naturalWidth)"
    )
    assert len(words) in wide  # of the cross-attention


@pytest.mark.parametrize(
    ("model", "boxes"),
    [
        ("gpt", ["Add", "Feed-forward", "Norm", "Add", "Masked self-attention", "Norm"]),
        ("bert", ["Add & norm", "Feed-forward", "Add & norm", "Self-attention"]),
    ],
)
def test_boxes_are_in_the_order_of_computation(visit, model, boxes):
    page = visit().go(address(model=model, target=""))
    drawn(page)
    layer = page.get_by_role("article").last
    assert [text.lstrip("▸▾ ") for text in layer.locator(".title").all_inner_texts()] == boxes
    for box in layer.locator(".box").all():
        path = box.get_attribute("data-path")
        box.locator(".title").focus()
        page.keyboard.press("Enter")
        box.locator(".body .step").first.wait_for()
        assert f"open={path}" in page.url
    # As in links of version 0.1: both the norm and the sum.
    stack = "decoder" if model == "gpt" else "encoder"
    page.goto(page.url.split("open=")[0] + f"open={stack}.layers.0.feed_forward_residual")
    page.locator(".body .step").nth(4).wait_for()
    page.get_by_text("variance").wait_for()


def test_a_word_is_deselected(visit):
    page = visit().go(address(word="s2"))
    drawn(page)
    word = page.get_by_role("group", name="Input").get_by_role("button").nth(2)
    assert word.get_attribute("aria-pressed") == "true"
    word.click()
    assert word.get_attribute("aria-pressed") == "false"
    assert "word=" not in page.url
    word.click()
    assert "word=s2" in page.url
    page.keyboard.press("Escape")
    assert "word=" not in page.url
    page.goto(page.url + "&word=s2&why=encoder.embedding.tokens@2,0")
    page.locator("[data-node]").wait_for()
    page.keyboard.press("Escape")
    page.locator("[data-node]").wait_for(state="detached")
    assert "word=s2" in page.url


def test_an_explanation_names_the_place_and_returns(visit):
    page = visit().go(address(why="decoder.layers.1.cross_attention.probabilities@0,2,1"))
    where, panel = page.locator("[data-part=where]"), page.locator("[data-node]")
    where.wait_for()
    assert where.inner_text() == "decoder, layer 2, cross-attention, head 1"
    panel.get_by_role("button").nth(1).click()
    page.wait_for_selector("[data-kind=mask]")
    panel.get_by_role("button", name="Previous number").click()
    page.wait_for_selector("[data-kind=softmax]")
    assert panel.get_by_role("button", name="Previous number").count() == 0
    for name, place in (
        ("decoder.layers.0.feed_forward_residual.sum@1,1", "decoder, layer 1, feed-forward, add"),
        ("encoder.layers.0.self_attention_residual.norm.mean@1", "encoder, layer 1, self-attention, norm"),
        ("encoder.output@1,1", "encoder, top"),
        ("probabilities@1,1", "linear & softmax"),
    ):
        page.goto(page.url.split("why=")[0] + f"why={name}")
        page.locator(f'[data-node="{name.split("@")[0]}"]').wait_for()
        assert where.inner_text() == place


def test_on_a_small_screen_the_number_that_is_explained_stays_in_sight(visit):
    page = visit(width=1024, height=768).go(address(open="decoder.layers.0.feed_forward", word="t2"))
    strip = page.locator(".body .strip .value").last
    strip.wait_for()
    strip.evaluate("(one) => one.scrollIntoView({ block: 'end' })")
    strip.click()
    panel = page.locator("[data-node]")
    panel.wait_for()
    page.wait_for_function(
        """() => document.querySelector(":focus").getBoundingClientRect().bottom
          <= document.querySelector("[data-node]").getBoundingClientRect().top"""
    )
    assert panel.bounding_box()["height"] <= 0.46 * 768


def test_back_restores_the_previous_text(visit):
    page = visit().go(address(target=""))
    drawn(page)
    page.get_by_role("textbox").press_sequentially(" It slept.", delay=60)
    page.wait_for_function("() => location.search.includes('slept.')")
    page.go_back()
    page.wait_for_function("(text) => document.querySelector('textarea').value === text", arg=TEXT)


def test_several_lines_are_read_as_one_sentence(visit):
    page = visit().go(address(text="The dog sleeps.\nThe man is old.", target=""))
    drawn(page)
    assert page.get_by_role("textbox").input_value() == "The dog sleeps.\nThe man is old."
    assert page.get_by_text("These lines are read as one sentence").is_visible()


def test_several_sentences_are_offered_one_by_one(visit):
    page = visit().go(address(text="The dog was old. The man was tired.", target="", word="t2"))
    drawn(page)
    page.get_by_text("follows. Shades").wait_for()
    assert "follows" in page.locator(".description").inner_text()
    assert "chosen." not in page.locator("main").inner_text()
    page.get_by_text("translates this text in 2 parts").click()
    page.get_by_role("button", name="The man was tired.").click()
    page.get_by_role("group", name="Input").get_by_role("button", name="dog").wait_for(state="detached")
    page.get_by_role("group", name="Output").get_by_role("button").nth(2).click()
    page.get_by_text("is chosen").wait_for()
    assert page.get_by_text("translates this text in").count() == 0


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_a_link_scrolls_to_the_open_box(visit, size):
    page = visit(width=size[0], height=size[1]).go(address(open="encoder.layers.0.feed_forward", word="s1"))
    drawn(page)
    box = page.locator("[data-path='encoder.layers.0.feed_forward']")
    box.locator(".body").wait_for()
    page.wait_for_function("() => scrollY > 0")
    top = page.locator(".top").bounding_box()
    hidden = max(top["y"] + top["height"], 0) if size[0] > 1200 else 0
    assert hidden <= box.bounding_box()["y"] <= size[1] - 200
    page.mouse.wheel(0, -10_000)
    page.wait_for_function("() => scrollY === 0")
    page.get_by_role("group", name="Input").get_by_role("button").nth(2).click()  # scrolls only once
    page.wait_for_function("() => location.search.includes('word=s2')")
    assert page.evaluate("scrollY") == 0


def test_a_given_text_is_not_called_written(visit):
    page = visit().go(address(model="llama", target="", open="decoder.layers.0.feed_forward", step=2))
    drawn(page)
    assert "is read." in page.locator(".description").inner_text()
    assert "written" not in page.locator("main").inner_text()
    gate, value = page.get_by_role("slider", name="gate"), page.get_by_role("slider", name="value x")
    assert gate.get_attribute("aria-valuemax") == value.get_attribute("aria-valuemax") == "47"
    value.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.get_by_text("Value of unit 47").wait_for()
    page.goto(page.url.split("&open=")[0].replace("llama", "gpt") + "&open=decoder.embedding")
    page.get_by_text("a learned row of a second table").wait_for()


def test_of_a_long_sentence_the_word_that_asks_is_in_sight(visit):
    text = " ".join(["The animal was too tired."] * 12)
    page = visit().go(address(text=text, target=TARGET, word="s50", open="encoder.layers.0.self_attention"))
    page.get_by_text("”, head 1").wait_for()
    inside = page.locator(".scroll").first.evaluate(
        """(box) => {
          const [outer, inner] = [box, box.querySelector("text.on")].map((one) => one.getBoundingClientRect());
          return outer.height < 600 && inner.top >= outer.top && inner.bottom <= outer.bottom;
        }"""
    )
    assert inside


@pytest.mark.parametrize("width", [390, 1024, 1400])
def test_pictures_of_heads_are_no_dots(visit, width):
    page = visit(width=width).go(address(open="decoder.layers.0.cross_attention", why="encoder.output@1,1"))
    drawn(page)
    wide = page.evaluate("[...document.querySelectorAll('.head')].map((one) => one.getBoundingClientRect().width)")
    assert min(wide) >= 24


def test_on_a_phone_the_probabilities_are_whole(visit):
    page = visit(width=390, height=844).go(address(open="output", word="t2"))
    page.locator(".body tbody tr").nth(9).wait_for()
    table = page.locator(".body table").locator("..")
    assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    shares = page.locator(".body tbody .bar").all_inner_texts()
    assert "0.0 %" not in shares
    assert len({one.bounding_box()["height"] for one in page.locator(".body tbody tr").all()}) == 1


def test_all_rows_of_the_scores_are_in_sight(visit):
    long = "The animal did not cross the wide old street because it was too tired and too old."
    page = visit().go(address(text=long, target="", word="s9", open="encoder.layers.0.self_attention"))
    page.get_by_text("”, head 1").wait_for()
    assert page.locator(".body tbody tr").count() >= 17
    box = page.locator(".body table").locator("..")
    assert box.evaluate("(one) => one.scrollHeight <= one.clientHeight")


@pytest.mark.parametrize("part", ["output", "decoder.embedding", "encoder.layers.0.feed_forward", "decoder.norm"])
def test_every_box_opens(visit, part):
    page = visit().go(address(open=part, word="t2"))
    page.locator(".body").wait_for()
    page.wait_for_function("() => !document.querySelector('.body [aria-busy]')")
    assert page.locator(".body").get_by_role("slider").or_(page.locator(".body td")).count() >= 2


@pytest.mark.parametrize("part", ["output", "decoder.embedding"])
def test_an_open_box_is_busy_until_its_numbers_are_loaded(visit, part):
    tab, held, free = visit(), [], []
    tab.page.route("**/v1/trace/**", lambda route: route.continue_() if free else held.append(route))
    page = tab.go(address(open=part, word="t2"))
    body = page.locator(".body")
    busy = body.locator("[aria-busy=true]")
    busy.wait_for()
    assert busy.inner_text() == "Loading numbers …"
    assert body.get_by_role("slider").or_(body.locator("table")).count() == 0
    free.append(True)
    for route in held:
        route.continue_()
    busy.wait_for(state="detached")
    assert body.get_by_role("slider").or_(body.locator("td")).count() >= 2


def label(piece):
    """A token as the page shows it: dots mark the continuation of a word, a sign after a space shows the space."""
    bare = piece.removeprefix("▁")
    if bare[:1].isalnum():
        return bare if piece.startswith("▁") else f"…{bare}"
    return f"␣{bare}" if piece.startswith("▁") else bare


def test_the_output_shows_the_likeliest_words(visit, trace, taught):
    page = visit().go(address(open="output", word="t2"))
    page.locator(".body tbody tr").nth(9).wait_for()
    shown = [float(text) for text in page.get_by_role("button", name="probability").all_inner_texts()]
    probabilities = trace["probabilities"].numpy()[2]
    best = probabilities.argsort()[::-1][: len(shown)]
    assert np.abs(np.array(shown) - probabilities[best]).max() < 1e-4
    words = sightline.load(taught, device="cpu", backend="torch").tokenizer
    assert page.locator(".body tbody th").all_inner_texts() == [label(one) for one in words.pieces(best)]

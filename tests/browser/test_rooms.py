"""All rooms: addresses, history, keys, colours, widths, and a server that stops and returns."""

import json
import urllib.parse
from pathlib import Path

import pytest

import sightline
from serving import Server, cannot, serving
from sightline.data.builtin import generate, riddle

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
TEXT = "The animal was too tired."
ROOMS = {
    "translate": {"scores": "1"},
    "glass": {"word": "t2", "open": "decoder.layers.1.cross_attention", "why": "decoder.norm.output@1,1"},
    "beams": {"beams": "3"},
    "tour": {},
}


def address(room, **view):
    return "?" + urllib.parse.urlencode({"room": room, "text": TEXT, **view})


def settled(page):
    """Wait until nothing is fetched, computed or animated (a blinking cursor may stay)."""
    page.wait_for_load_state("networkidle")
    page.wait_for_function(
        """() => !document.querySelector("[aria-busy=true]") && document.getAnimations().every((one) =>
          one.playState !== "running" || one.effect.getComputedTiming().iterations === Infinity)"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("room", ROOMS)
def test_axe_finds_nothing(visit, room, scheme):
    if not AXE.exists():
        cannot("axe-core is not installed; run make web")
    page = visit(color_scheme=scheme).go(address(room, **ROOMS[room]))
    settled(page)
    page.evaluate(AXE.read_text("utf-8"))  # evaluated like in a debugger, which the content policy allows
    found = page.evaluate("axe.run().then((done) => done.violations)")
    violations = [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found]
    assert violations == [], json.dumps(violations, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("room", ROOMS)
def test_a_phone_shows_all_of_it(visit, room):
    page = visit(width=390, height=844, has_touch=True).go(address(room, **ROOMS[room]))
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.get_by_role("banner").bounding_box()["height"] <= 110  # two lines


ADD_ROOMS = """(titles) => {
  const nav = document.querySelector("nav");
  for (const title of titles) {
    const room = nav.lastElementChild.cloneNode(true);
    room.textContent = title;
    nav.append(room);
  }
}"""


@pytest.mark.parametrize("width", [1280, 1024, 390])
def test_the_navigation_has_space_for_eight_rooms(visit, width):
    page = visit(width=width).go(address("glass"))
    settled(page)
    page.evaluate(ADD_ROOMS, ["Write", "Chat", "Read", "Lab"])
    nav = page.get_by_role("navigation")
    rooms = nav.get_by_role("button")
    assert rooms.count() == 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.get_by_role("banner").bounding_box()["height"] <= 110
    assert len({room.bounding_box()["y"] for room in rooms.all()}) == 1
    if width > 390:
        assert nav.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    else:  # all of them are reached by scrolling
        nav.evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
        assert rooms.last.bounding_box()["x"] + rooms.last.bounding_box()["width"] <= width


def test_rooms_that_no_served_model_can_do_are_hidden(visit, folders):
    with serving(f"gpt={folders['gpt']}", "--backend", "torch") as server:
        page = visit(url=server.url).go("?room=glass")
        settled(page)
        assert page.get_by_role("navigation").get_by_role("button").all_inner_texts() == ["Glass", "Tour"]


def test_an_address_reproduces_the_view(visit):
    tab = visit()
    page = tab.go(address("glass", word="t2", open="encoder.embedding"))
    page.locator(".waves").wait_for()
    page.get_by_role("button", name="Beams").click()
    assert "room=beams" in page.url
    page.go_back()
    page.locator(".waves").wait_for()
    here = page.url
    page.reload()
    page.locator(".waves").wait_for()
    assert page.url == here
    page.go_forward()
    assert "room=beams" in page.url


def test_reduced_motion(visit):
    page = visit(reduced_motion="reduce").go(address("glass"))
    settled(page)
    longest = page.evaluate(
        """() => Math.max(...[...document.querySelectorAll("*")].flatMap((one) => {
          const style = getComputedStyle(one);
          return [...style.transitionDuration.split(","), ...style.animationDuration.split(",")].map(parseFloat);
        }))"""
    )
    assert longest < 0.001


@pytest.mark.parametrize("text", ["", " ", "?", "🙂 𝒳 \u202eabc", "a" * 400, "word " * 300])
def test_unusual_texts_are_handled(visit, text):
    tab = visit()
    tab.allowed = ["413", "422"]
    page = tab.go(f"?room=glass&text={urllib.parse.quote(text)}")
    settled(page)
    text = page.locator("main").inner_text()
    assert text.strip()
    assert "undefined" not in text
    assert "NaN" not in text


def test_a_server_that_stops_and_returns(visit, taught):
    server = Server(f"taught={taught}", "--backend", "torch")
    port = server.url.rpartition(":")[2]
    tab = visit(url=server.url)
    tab.allowed = ["ERR_CONNECTION", "404", "503"]
    page = tab.go(address("glass"))
    page.locator(".figure[data-stored=false] .head img").first.wait_for()
    server.stop()
    page.get_by_role("textbox").fill("The dog was too old.")
    page.get_by_role("alert").wait_for()
    assert page.locator(".head img").count() > 0  # the content stays
    page.mouse.wheel(0, 5000)
    page.wait_for_function("scrollY > 0")
    assert page.get_by_role("alert").bounding_box()["y"] == 0  # in sight at every scroll position
    server = Server(f"taught={taught}", "--backend", "torch", port=port)
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_role("group", name="Input").get_by_text("dog").or_(page.get_by_text("▁dog")).first.wait_for()
    server.stop()


# --- From room to room, with the bundled model

RIDDLE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def shipped(folders):
    others = (f"{name}={folders[name]}" for name in ("taught", "gpt"))
    with serving("coref", "half-taught=coref/states/step-00000080", *others, "--backend", "torch") as server:
        yield server


@pytest.fixture(scope="module")
def coref():
    return sightline.load("coref", device="cpu", backend="torch")


def query(page):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlparse(page.url).query))


def writes(page):
    """The output tokens in the Glass room."""
    page.locator(".figure[data-stored=false]").wait_for()
    return page.get_by_role("group", name="Output").get_by_role("button").all_inner_texts()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_matrix_and_its_table_stay_inside_their_panel(visit, width):
    long = " ".join(["The animal was too tired to cross the street"] * 4) + "."
    page = visit(width=width, height=900).go(address("glass", text=long, open="decoder.layers.1.cross_attention"))
    figure = page.locator("figure")
    inside = "(one) => one.getBoundingClientRect().right <= one.closest('.layer').getBoundingClientRect().right"
    figure.locator(".cells").wait_for()
    assert figure.evaluate(inside)
    figure.get_by_role("button", name="Show as table").click()
    table = figure.get_by_role("region")
    assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")  # all of it is there
    assert figure.evaluate(inside)
    back = figure.get_by_role("button", name="Show as picture")
    assert back.evaluate(inside)
    back.click()
    figure.locator(".cells").wait_for()


def test_the_models_own_answer_is_not_a_choice(visit, shipped):
    page = visit(url=shipped.url).go(f"?model=coref&text={urllib.parse.quote(RIDDLE)}")
    page.get_by_role("button", name="es", exact=True).click()
    page.get_by_role("button", name="Open in Glass").click()
    assert "es" in writes(page)
    assert page.get_by_text("You chose this translation").count() == 0
    assert "target" not in query(page)
    page.get_by_role("button", name="Beams").click()
    page.get_by_role("button", name="Open in Glass").click()
    assert "es" in writes(page)
    assert page.get_by_text("You chose this translation").count() == 0


def test_another_answer_is_the_readers_choice(visit, shipped):
    page = visit(url=shipped.url).go(f"?model=coref&text={urllib.parse.quote(RIDDLE)}")
    page.get_by_role("button", name="es", exact=True).click()
    page.get_by_role("dialog").get_by_role("button").filter(has_text="%").first.click()
    page.get_by_text("your choice").wait_for()
    page.locator("[data-word]").nth(1).click()
    page.get_by_role("button", name="Open in Glass").click()
    page.get_by_text("You chose this translation").wait_for()
    assert query(page)["target"]


def test_examples_of_the_bundled_model_are_translated_correctly(visit, shipped, coref):
    page = visit(url=shipped.url).go("?model=coref")
    page.get_by_text("It knows a small world of animals and places").wait_for()
    tried = page.get_by_role("list", name="Examples").get_by_role("button").all_inner_texts()
    right = {pair.source: pair.target for pair in [*riddle(), *generate("test", 100)]}
    assert len(tried) == 4
    assert [one.text for one in coref.translate(tried, beams=1)] == [right[one] for one in tried]
    page.get_by_label("Model").select_option("half-taught")
    page.get_by_role("option", name="half-taught", selected=True).wait_for(state="attached")
    assert page.get_by_role("list", name="Examples").get_by_role("button").all_inner_texts() == tried
    page.get_by_label("Model").select_option("taught")
    page.get_by_text("It knows a small world").wait_for(state="detached")
    page.get_by_role("button", name="I am a student.").wait_for()


def test_a_sample_is_what_the_glass_shows(visit, shipped, coref):
    page = visit(url=shipped.url).go("?model=coref&sample=1&seed=2&text=I+am+a+student.")
    page.locator("[data-word]").first.wait_for()
    drawn = page.locator("[data-word]").all_inner_texts()
    assert " ".join(drawn) != coref.translate(["I am a student."], beams=1)[0].text
    page.get_by_role("button", name="Glass").click()
    assert "".join(writes(page)[1:]) == "".join(drawn)
    page.get_by_role("button", name="Beams").click()
    page.get_by_text("Translate shows a sample").wait_for()


def test_an_answer_never_appears_under_the_name_of_another_model(visit, shipped):
    page = visit(url=shipped.url).go(f"?model=coref&text={urllib.parse.quote(RIDDLE)}")
    page.locator("[data-word]").first.wait_for()
    page.route("**/v1/translate**", lambda route: None)  # the other model does not answer
    page.get_by_label("Model").select_option("taught")
    page.get_by_text("Translating").first.wait_for()
    assert page.locator("[data-word]").count() == 0
    assert page.get_by_role("button", name="Copy").is_disabled()
    page.route("**/v1/trace", lambda route: None)
    page.get_by_label("Model").select_option("coref")
    page.unroute("**/v1/trace")
    page.get_by_role("button", name="Glass").click()
    page.locator(".figure[data-stored=false]").wait_for()
    page.route("**/v1/trace", lambda route: None)
    page.get_by_label("Model").select_option("taught")
    assert "Computed by coref" in page.locator("footer").inner_text()  # whose numbers are still shown


HEBREW = "\u05d4\u05db\u05dc\u05d1 \u05d4\u05d6\u05d4"


def test_text_from_right_to_left(visit):
    page = visit().go(address("translate", text=HEBREW, target=HEBREW, scores="1"))
    words = page.locator("[data-word]")
    words.nth(1).wait_for()
    assert page.get_by_role("textbox").evaluate("(one) => getComputedStyle(one).direction") == "rtl"
    assert words.nth(0).bounding_box()["x"] > words.nth(1).bounding_box()["x"]
    numbers = "[...document.querySelectorAll('main .number')].map((one) => getComputedStyle(one).direction)"
    assert set(page.evaluate(numbers)) == {"ltr"}
    words.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.word") == "1"
    page.get_by_role("button", name="Beams").click()
    assert page.get_by_role("textbox").evaluate("(one) => getComputedStyle(one).direction") == "rtl"


@pytest.mark.parametrize("width", [1440, 390])
def test_words_are_in_whole_lines(visit, width):
    page = visit(width=width).go(address("glass", text=" ".join([RIDDLE] * 8)))
    page.locator(".figure[data-stored=false]").wait_for()
    row = page.get_by_role("group", name="Input").locator(".words")
    edge, bottom = row.evaluate("(one) => [one.getBoundingClientRect().left, one.getBoundingClientRect().bottom]")
    boxes = [one.bounding_box() for one in row.get_by_role("button").all()]
    lines = sorted({box["y"] for box in boxes})
    assert len(lines) > 3
    assert {min(box["x"] for box in boxes if box["y"] == line) - edge for line in lines} == {3}
    assert not any(box["y"] < bottom < box["y"] + box["height"] for box in boxes)


def test_a_small_probability_is_not_shown_as_0(visit, shipped):
    page = visit(url=shipped.url).go(f"?model=coref&text={urllib.parse.quote(RIDDLE)}")
    page.get_by_role("button", name="Tier", exact=True).click()
    choices = page.get_by_role("dialog").locator(".share")
    choices.last.wait_for()
    assert "< 0.1 %" in choices.all_inner_texts()
    assert "0.0 %" not in choices.all_inner_texts()

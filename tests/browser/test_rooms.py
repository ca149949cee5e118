"""What holds in every room: addresses, history, keys, colours, widths, a server that goes away."""

import json
import urllib.parse
from pathlib import Path

import pytest

from serving import Server, cannot

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
TEXT = "The animal was too tired."
ROOMS = {
    "translate": {"scores": "1"},
    "glass": {"word": "t2", "open": "decoder.layers.1.cross_attention", "why": "decoder.norm.output@1,1"},
    "beams": {"beam": "3"},
}


def address(room, **view):
    return "?" + urllib.parse.urlencode({"room": room, "text": TEXT, **view})


def settled(page):
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("room", ROOMS)
def test_axe_finds_nothing(visit, room, scheme):
    if not AXE.exists():
        cannot("axe-core is not installed; run make web")
    page = visit(color_scheme=scheme).go(address(room, **ROOMS[room]))
    settled(page)
    page.evaluate(AXE.read_text("utf-8"))  # past the policy that forbids foreign scripts, as a debugger may
    found = page.evaluate("axe.run().then((done) => done.violations)")
    told = [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found]
    assert told == [], json.dumps(told, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("room", ROOMS)
def test_a_phone_shows_all_of_it(visit, room):
    page = visit(width=390, height=844, has_touch=True).go(address(room, **ROOMS[room]))
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_address_says_what_is_on_screen(visit):
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


def test_who_wants_no_motion_gets_none(visit):
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
def test_odd_sentences_are_handled_in_words(visit, text):
    tab = visit()
    tab.allowed = ["413", "422"]
    page = tab.go(f"?room=glass&text={urllib.parse.quote(text)}")
    settled(page)
    said = page.locator("main").inner_text()
    assert said.strip()
    assert "undefined" not in said
    assert "NaN" not in said


def test_a_server_that_goes_away_and_comes_back_is_survived(visit, taught):
    server = Server(f"taught={taught}", "--engine", "torch")
    port = server.url.rpartition(":")[2]
    tab = visit(url=server.url)
    tab.allowed = ["ERR_CONNECTION", "404", "503"]
    page = tab.go(address("glass"))
    page.locator(".figure[data-stored=false] .head img").first.wait_for()
    server.stop()
    page.get_by_role("textbox").fill("The dog was too old.")
    page.get_by_role("alert").wait_for()
    assert page.locator(".head img").count() > 0  # what is on screen stays
    server = Server(f"taught={taught}", "--engine", "torch", port=port)
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_role("group", name="it reads").get_by_text("dog").or_(page.get_by_text("▁dog")).first.wait_for()
    server.stop()

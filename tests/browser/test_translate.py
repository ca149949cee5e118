"""The Translate room: streaming, options and alternatives."""

import urllib.parse

import pytest

import sightline

TEXT = "The animal was too tired."


def address(**view):
    return "?" + urllib.parse.urlencode({"room": "translate", "text": TEXT, **view})


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, device="cpu", backend="torch")


def answer(page):
    """The answer, when it is complete."""
    page.get_by_role("button", name="Copy").wait_for()
    page.wait_for_load_state("networkidle")
    return page.locator("section[aria-label='Translation']")


def test_what_is_shown_is_what_the_engine_writes(visit, engine):
    page = visit().go(address())
    right = engine.translate([TEXT], beams=1)[0].text
    answer(page).get_by_text(right).first.wait_for(state="attached")
    page.get_by_role("slider", name="Beams").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**beams=4**")
    answer(page).get_by_text(engine.translate([TEXT], beams=4)[0].text).first.wait_for(state="attached")


def test_a_text_is_translated_as_it_is_typed(visit, engine):
    page = visit().go()
    page.get_by_role("textbox").fill("The dog is old.")
    page.wait_for_url("**The+dog+is+old**")
    right = engine.translate(["The dog is old."], beams=1)[0].text
    answer(page).get_by_text(right).first.wait_for(state="attached")


def test_another_word_can_be_chosen_and_opened_in_the_glass(visit, engine):
    page = visit().go(address())
    panel = answer(page)
    own = engine.translate([TEXT], beams=1)[0].text
    panel.get_by_text(own).first.wait_for(state="attached")
    first = own.split()[0]
    panel.get_by_role("button", name=first).first.click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    choices = dialog.get_by_role("button").filter(has_text="%")
    choices.nth(1).wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    panel.get_by_role("button", name=first).first.press("Enter")
    choices.nth(1).click()
    page.wait_for_url("**target=**")
    page.get_by_role("button", name="Use the model's translation").wait_for()
    page.go_back()
    page.wait_for_url(lambda url: "target=" not in url)


def test_scores_are_those_of_the_engine(visit, engine):
    page = visit().go(address(scores="1"))
    answer(page)
    page.get_by_text("Score", exact=True).first.wait_for()
    found = engine.translate([TEXT], beams=1)[0]
    total = f"{sum(found.log_probs):.4f}".replace("-", "\u2212")
    page.get_by_text(total).first.wait_for()


def test_every_sentence_of_a_text_can_be_taken(visit):
    sentences = [f"The {one} was old." for one in ("dog", "man", "cat", "bear", "cow", "woman", "bird", "horse")]
    page = visit().go("?" + urllib.parse.urlencode({"text": " ".join(sentences)}))
    page.get_by_text("was translated in 8 parts").wait_for()
    found = page.locator(".note li").get_by_role("button")
    assert found.all_inner_texts() == sentences
    found.last.click()
    page.wait_for_function("() => location.search.includes('horse') && !location.search.includes('dog')")

"""The Beams room: the search as a tree, its numbers and its actions."""

import urllib.parse

import pytest

import sightline

TEXT = "The animal was too tired."


def address(**view):
    return "?" + urllib.parse.urlencode({"room": "beams", "text": TEXT, "beams": 3, **view})


def number(text):
    return float(text.replace("\u2212", "-"))


@pytest.fixture(scope="module")
def tree(taught):
    return sightline.load(taught, device="cpu", backend="torch").tree(TEXT, beams=3, nbest=3, length_penalty=0.6)


def test_the_tree_is_the_search(visit, tree, taught):
    page = visit().go(address(length_penalty=0.6))
    page.locator("[data-node]").first.wait_for()
    assert page.locator("[data-node]").count() == len(tree.nodes)
    page.get_by_role("button", name="Table").click()
    rows = page.locator("main table tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(tree.nodes)
    assert "table=1" in page.url


def test_scores_are_the_totals_by_their_lengths(visit, tree):
    page = visit().go(address(length_penalty=0.6))
    page.locator("[data-formula=score]").first.wait_for()
    shown = page.evaluate(
        """() => [...document.querySelectorAll("[data-formula=score]")].map(
          (one) => [...one.querySelectorAll("[data-value]")].map((value) => value.innerText))"""
    )
    for formula in shown:
        total, length, alpha, score = map(number, formula)
        assert abs(total / length**alpha - score) <= 1e-3
    ended = sorted((node.score for node in tree.nodes if node.fate == "ended"), reverse=True)
    listed = {number(formula[3]) for formula in shown}  # the best is shown twice
    assert sorted(listed, reverse=True) == pytest.approx(ended, abs=1e-4)


def test_the_search_continues_from_a_branch(visit):
    page = visit().go(address())
    page.locator("[data-node]").first.wait_for()
    page.get_by_role("tree").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "node=" in page.url
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent").strip() == "Continue from here"
    page.keyboard.press("Enter")
    page.locator(".forced p").wait_for()
    assert "prefix=" in page.url
    assert "Without it, the search finds" in page.locator(".forced").inner_text()
    page.go_back()
    page.locator(".forced p").wait_for(state="detached")


def test_a_hypothesis_opens_in_the_glass(visit):
    page = visit().go(address(node=4))
    page.get_by_role("button", name="Open in Glass").click()
    page.locator(".figure[data-stored=false] .head img").first.wait_for()
    view = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(page.url).query))
    assert view["room"] == "glass"
    assert view["target"]
    assert view["word"].startswith("t")


def test_a_row_of_the_table_selects_a_hypothesis(visit):
    page = visit().go(address(table=1))
    row = page.locator("main table tbody tr").nth(1)
    button = row.get_by_role("button")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    text = button.inner_text()
    assert page.locator(".card .text").inner_text() == text
    page.get_by_role("button", name="Continue from here").click()
    page.get_by_label("Required beginning").get_by_text(text).first.wait_for()


def test_the_box_is_not_higher_than_its_tree(visit):
    page = visit().go(address(beams=1))
    page.locator("[data-node]").first.wait_for()
    high = "(one) => one.getBoundingClientRect().height"
    assert page.locator(".tree").evaluate(high) < page.locator("svg.all").evaluate(high) + 60


def test_a_required_beginning_scrolls_to_the_first_free_step(visit, taught):
    engine = sightline.load(taught, device="cpu", backend="torch")
    begins = " ".join(engine.translate([TEXT])[0].text.split()[:3])
    page = visit(width=600).go(address(prefix=begins))
    page.locator(".forced p").wait_for()
    free = page.locator(".steps").get_by_text("required").count() + 1
    group = page.get_by_role("group", name=f"step {free}", exact=True).locator("rect").first
    page.wait_for_function("document.querySelector('.box').scrollLeft > 0")
    assert group.bounding_box()["x"] < 600


def test_each_of_several_sentences_can_be_opened(visit):
    tab = visit()
    tab.allowed.append("422")  # the service decides what a sentence is
    page = tab.go("?room=beams&text=The+dog+was+old.+The+man+was+tired.")
    page.get_by_role("alert").wait_for()
    page.get_by_role("button", name="The man was tired.").click()
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_role("heading", name="Answers, best first").wait_for()


def test_options_without_effect_are_disabled(visit):
    page = visit().go(address(beams=1))
    assert page.get_by_role("slider", name="Length penalty").is_disabled()
    page.get_by_role("button", name="Try 4 beams").click()
    assert page.get_by_role("slider", name="Length penalty").is_enabled()
    page.get_by_label("Model").select_option("gpt")
    page.get_by_text("Beams needs another model").wait_for()
    assert page.get_by_role("slider").count() == 0

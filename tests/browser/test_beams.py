"""The room of beams: the search as a tree, its numbers, and what can be done with it."""

import urllib.parse

import pytest

import sightline

TEXT = "The animal was too tired."


def address(**view):
    return "?" + urllib.parse.urlencode({"room": "beams", "text": TEXT, "beam": 3, **view})


def number(text):
    return float(text.replace("\u2212", "-"))


@pytest.fixture(scope="module")
def tree(taught):
    return sightline.load(taught, device="cpu", backend="torch").tree(TEXT, beams=3, nbest=3, length_penalty=0.6)


def test_the_tree_is_the_search(visit, tree, taught):
    page = visit().go(address(length_penalty=0.6))
    page.locator("[data-node]").first.wait_for()
    assert page.locator("[data-node]").count() == len(tree.nodes)
    page.get_by_role("button", name="As a table").click()
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
    listed = {number(formula[3]) for formula in shown}  # the best is told twice
    assert sorted(listed, reverse=True) == pytest.approx(ended, abs=1e-4)


def test_a_branch_is_forced_and_the_search_goes_on_from_it(visit):
    page = visit().go(address())
    page.locator("[data-node]").first.wait_for()
    page.get_by_role("tree").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "node=" in page.url
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent").strip() == "Go on from here"
    page.keyboard.press("Enter")
    page.locator(".forced p").wait_for()
    assert "prefix=" in page.url
    assert "left alone" in page.locator(".forced").inner_text().lower()
    page.go_back()
    page.locator(".forced p").wait_for(state="detached")


def test_a_hypothesis_opens_in_the_glass(visit):
    page = visit().go(address(node=4))
    page.get_by_role("button", name="Look inside").click()
    page.locator(".figure[data-stored=false] .head img").first.wait_for()
    view = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(page.url).query))
    assert view["room"] == "glass"
    assert view["target"]
    assert view["word"].startswith("t")


def test_a_row_of_the_table_is_chosen_like_a_hypothesis_of_the_tree(visit):
    page = visit().go(address(table=1))
    row = page.locator("main table tbody tr").nth(1)
    button = row.get_by_role("button")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    says = button.inner_text()
    assert page.locator(".says").last.inner_text() == says
    page.get_by_role("button", name="Go on from here").click()
    page.get_by_label("A forced beginning").get_by_text(says).first.wait_for()


def test_the_box_is_no_higher_than_its_tree(visit):
    page = visit().go(address(beam=1))
    page.locator("[data-node]").first.wait_for()
    high = "(one) => one.getBoundingClientRect().height"
    assert page.locator(".tree").evaluate(high) < page.locator("svg.all").evaluate(high) + 60


def test_a_forced_beginning_is_looked_at_where_the_search_is_free(visit, taught):
    engine = sightline.load(taught, device="cpu", backend="torch")
    begins = " ".join(engine.translate([TEXT])[0].text.split()[:3])
    page = visit(width=600).go(address(prefix=begins))
    page.locator(".forced p").wait_for()
    free = page.get_by_text("given").count() + 1
    group = page.get_by_role("group", name=f"step {free}", exact=True).locator("rect").first
    page.wait_for_function("document.querySelector('.box').scrollLeft > 0")
    assert group.bounding_box()["x"] < 600


def test_of_several_sentences_each_can_be_taken(visit):
    tab = visit()
    tab.allowed.append("422")  # the server is asked, as it is the one who knows what a sentence is
    page = tab.go("?room=beams&text=The+dog+was+old.+The+man+was+tired.")
    page.get_by_role("alert").wait_for()
    page.get_by_role("button", name="The man was tired.").click()
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_role("heading", name="Answers, the best first").wait_for()


def test_options_that_do_nothing_are_not_offered(visit):
    page = visit().go(address(beam=1))
    assert page.get_by_role("slider", name="Length penalty").is_disabled()
    page.get_by_role("button", name="Try 4 beams").click()
    assert page.get_by_role("slider", name="Length penalty").is_enabled()
    page.get_by_label("Model").select_option("gpt")
    page.get_by_text("Beams are shown for models that translate").wait_for()
    assert page.get_by_role("slider").count() == 0

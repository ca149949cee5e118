"""Speed of the page in a real browser: first picture, a new sentence, pointing at words, long sentences, sizes.

    python benchmarks/page.py MODEL [--large MODEL] [--chromium PATH]

MODEL is a folder that `sightline train` or `sightline import` wrote, or a shipped model; LARGE one with 6 layers and 8
heads (OPUS-MT), for times that depend on the amount to draw. Needs Chromium and the development dependencies. The
server, the browser and this script share the machine's cores.
"""

import argparse
import contextlib
import gzip
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import keep, where
from playwright.sync_api import Browser, Page, sync_playwright

from sightline.model_folder import ModelFolder
from sightline.serve.routes.page import STATIC

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WORDS = ["the", "old", "man", "and", "his", "dog", "walk", "along", "the", "river", "and", "look", "at", "the", "boats"]
GOALS = {
    "first picture, ms": 1000,
    "new sentence: after its trace, ms": 300,
    "new sentence: in all, ms": 1000,
    "pointing at 64 tokens, frames a second": 55,
    "longest frame at 128 tokens, ms": 200,
    "JavaScript, kB gzipped": 200,
    "overview of 30 tokens, MB": 0.3,
}
"""At most; for frames a second, at least."""

# Runs before the page's own code: notes when the pictures of all heads are drawn, and how long frames take.
WATCH = """
window.bench = { drawn: 0, text: "", frames: [], arrived: 0 };
let last = performance.now();
function look(now) {
  bench.frames.push(now - last);
  last = now;
  const heads = [...document.querySelectorAll("[data-stored=false] .head")];
  const pictures = heads.map((one) => one.querySelector("img")?.naturalWidth ?? 0);
  const words = [...document.querySelectorAll(".word")].map((one) => one.textContent).join(" ");
  const done = pictures.filter((wide) => wide > 0).length;
  const tokens = document.querySelectorAll("[aria-label='Input'] .word").length;
  const fresh = pictures[0] === Math.min(tokens, 128); // not those of the sentence before
  const full = done > 0 && fresh && (done === pictures.length || words.length > 900); // of long ones, what is on screen
  if (full && words !== bench.text) { bench.text = words; bench.drawn = performance.now(); }
  requestAnimationFrame(look);
}
requestAnimationFrame(look);
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (one.name.endsWith("/v1/trace")) bench.arrived = one.responseEnd;
}).observe({ type: "resource", buffered: true });
"""


def sentence(tokens: int) -> str:
    """Return a sentence of about this many tokens."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens)) + "."


@contextlib.contextmanager
def serving(model: Path) -> Iterator[str]:
    """Start a service as a user does; yield its address."""
    command = [sys.executable, "-m", "sightline.cli.main", "serve", f"model={model}", "--port", "0"]
    command += ["--set=max_traced=1024"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"at (http://\S+)$", line):
                yield found[1]
                break
    finally:
        process.terminate()
        process.wait()


def opened(browser: Browser, url: str, text: str, **more: str) -> Page:
    """Open the glass with a sentence."""
    page = browser.new_context(viewport={"width": 1400, "height": 1000}, bypass_csp=True).new_page()
    page.add_init_script(WATCH)
    page.goto(f"{url}/?{urllib.parse.urlencode({'room': 'glass', 'text': text, **more})}")
    page.wait_for_function("bench.drawn > 0", timeout=60_000)
    return page


def small(browser: Browser, url: str, rounds: int) -> dict[str, float]:
    """Return the times of the first picture and of a new sentence."""
    opened(browser, url, sentence(19)).context.close()  # the model is warm
    firsts, after, whole = [], [], []
    for i in range(rounds):
        page = opened(browser, url, sentence(19))
        firsts.append(page.evaluate("bench.drawn"))
        began = page.evaluate("performance.now()")
        was = page.evaluate("bench.drawn")
        page.fill("textarea", sentence(17) + f" {WORDS[i]}")
        page.wait_for_function(f"bench.drawn > {was}")
        after.append(page.evaluate("bench.drawn - bench.arrived"))
        whole.append(page.evaluate("bench.drawn") - began)
        page.context.close()
    return {
        "first picture, ms": round(statistics.median(firsts)),
        "new sentence: after its trace, ms": round(statistics.median(after)),
        "new sentence: in all, ms": round(statistics.median(whole)),
    }


def pointing(page: Page, seconds: float) -> list[float]:
    """Return the milliseconds of each frame while the pointer moves along the words."""
    boxes = [box for one in page.query_selector_all(".word")[:64] if (box := one.bounding_box())]
    page.evaluate("bench.frames.length = 0")
    steps = int(seconds * 60)
    began = time.perf_counter()
    for step in range(steps):  # as often as a screen shows it
        time.sleep(max(0.0, began + step / 60 - time.perf_counter()))
        box = boxes[step % len(boxes)]
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    frames: list[float] = page.evaluate("bench.frames.slice(1)")
    return frames


def large(browser: Browser, url: str, longest_sentence: int) -> dict[str, Any]:
    """Return the times that depend on the amount to draw."""
    page = opened(browser, url, sentence(62))
    frames = pointing(page, 4)
    page.context.close()
    longest = 0.0
    page = opened(browser, url, sentence(124))
    page.wait_for_timeout(300)
    longest = max([longest, *pointing(page, 3)])
    page.evaluate("bench.frames.length = 0")
    page.locator(".head").first.click()
    page.wait_for_selector(".cells canvas")
    page.wait_for_timeout(500)
    longest = max([longest, *page.evaluate("bench.frames")])
    page.context.close()
    text = sentence(longest_sentence)
    page = opened(browser, url, text, target=text)
    page.wait_for_timeout(1000)
    works = len(page.query_selector_all(".word")) > 1.8 * longest_sentence
    many = pointing(page, 2)
    page.context.close()
    return {
        "pointing at 64 tokens, frames a second": round(1000 * len(frames) / sum(frames), 1),
        "longest frame at 128 tokens, ms": round(longest),
        "512 tokens": "works" if works else "does not work",
        "longest frame at 512 tokens, ms": round(max(many)),
    }


def overview(browser: Browser, url: str) -> float:
    """Return the megabytes of the pictures of 30 tokens."""
    page = browser.new_context().new_page()
    sizes: list[int] = []

    def note(response: Any) -> None:
        if "probabilities" in response.url:
            sizes.append(len(response.body()))

    page.on("response", note)
    page.goto(f"{url}/?{urllib.parse.urlencode({'room': 'glass', 'text': sentence(27)})}")
    page.wait_for_selector("[data-stored=false] .head img")
    page.wait_for_timeout(1500)
    tokens = page.evaluate("document.querySelectorAll('.word').length") / 2
    page.context.close()
    return round(sum(sizes) / 1e6 * (30 / tokens) ** 2, 3)  # a picture grows by the square


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda name: ModelFolder(name).path)
    parser.add_argument("--large", type=lambda name: ModelFolder(name).path, help="without, MODEL")
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM") or shutil.which("chromium"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--longest", type=int, default=500, help="words of the longest sentence")
    options = parser.parse_args()
    scripts = sum(len(gzip.compress(path.read_bytes())) for path in (STATIC / "assets").glob("*.js"))
    found: dict[str, Any] = {"JavaScript, kB gzipped": round(scripts / 1000, 1)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=QUIET)
        version = browser.version
        with serving(options.model) as url:
            found |= small(browser, url, options.rounds)
        with serving(options.large or options.model) as url:
            found["overview of 30 tokens, MB"] = overview(browser, url)
            found |= large(browser, url, options.longest)
        browser.close()
    for name, value in found.items():
        goal = GOALS.get(name)
        met = "" if goal is None else f"(goal {goal}: {'met' if _met(name, value, goal) else 'MISSED'})"
        print(f"{name:<44}{value}  {met}")
    settings = {"model": options.model.name, "large": (options.large or options.model).name, "chromium": version}
    goals = {name: _met(name, found[name], goal) for name, goal in GOALS.items()}
    path = keep("page", {"where": where("fastapi"), "settings": settings, "results": found, "goals met": goals})
    print(f"kept in {path}")


def _met(name: str, value: float, goal: float) -> bool:
    return value >= goal if "frames a second" in name else value <= goal


if __name__ == "__main__":
    main()

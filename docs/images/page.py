"""Take pictures of the page: `python docs/images/page.py` writes page-*.png to its folder.

Needs Chromium (named by CHROMIUM, if it is called otherwise).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

RIDDLE = "The animal didn't cross the street because it was too tired."
WIDE = RIDDLE.replace("tired", "wide")
HALF = "coref/states/step-00000080"
CROSS = "decoder.layers.1.cross_attention"
LAST = "encoder.layers.6.self_attention"
SHOTS = {
    "translate": ({"model": "en-fr", "text": WIDE}, (1280, 700)),
    "it": (
        {"model": "en-fr", "room": "glass", "text": WIDE, "word": "s9", "open": LAST, "heads": "1"},
        (1400, 1000),
    ),
    "glass": ({"room": "glass", "text": RIDDLE, "word": "t8", "open": CROSS, "heads": "0-1-2-3"}, (1400, 1000)),
    "beams": ({"room": "beams", "model": "half-taught", "text": RIDDLE, "beam": 4}, (1280, 900)),
}
"""Each picture: the address, and the size of the window. Behind `weil`, the eighth token, the pronoun is written; a
model that is sure of every word has no beams to show, so these are of one that is still learning."""


def main() -> None:
    """Serve the shipped models, and look at them."""
    command = [
        sys.executable,
        "-m",
        "sightline.cli.main",
        "serve",
        "en-fr",
        "coref",
        f"half-taught={HALF}",
        "--port",
        "0",
    ]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
    assert running.stderr is not None  # noqa: S101
    address = next(found[1] for line in running.stderr if (found := re.search(r"^Serving .* at (http\S+)", line)))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, (view, (width, height)) in SHOTS.items():
                page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
                page.goto(f"{address}/?{urlencode({'model': 'coref', **view})}")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1000)
                page.screenshot(path=Path(__file__).parent / f"page-{name}.png")
    finally:
        running.terminate()
        running.wait()


if __name__ == "__main__":
    main()

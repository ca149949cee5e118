"""The real page, from the real server, in a real browser."""

import os
import shutil

import pytest
import torch
from playwright.sync_api import sync_playwright

from serving import cannot, serving
from sightline.config import ModelConfig
from sightline.model.transformer import build
from sightline.model_folder import load_tokenizer, save_model
from sightline.serve.routes.page import STATIC
from support import ONE_STACK, random_weights

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


STACK = {"layers": 2, "heads": 4, "d_ff": 48}


@pytest.fixture(scope="session")
def folders(taught, tmp_path_factory):
    """Model folders: a partly trained translator and models of one stack."""
    tokenizer, found = load_tokenizer(taught), {"taught": taught}
    for name, options in ONE_STACK.items():
        torch.manual_seed(3)
        sizes = {"d_model": 32, "encoder": STACK, "decoder": STACK, "attention_bias": True}
        found[name] = tmp_path_factory.mktemp("models") / name
        config = ModelConfig.model_validate({**sizes, **options, "vocab_size": tokenizer.size})
        save_model(random_weights(build(config)), found[name], tokenizer)
    return found


@pytest.fixture(scope="session")
def server(folders):
    assert (STATIC / "index.html").exists(), "the page is not built; run make web"
    with serving(*(f"{name}={folder}" for name, folder in folders.items()), "--backend", "torch") as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    """One browser per module: its event loop occupies the thread while it is open."""
    if not CHROMIUM:
        cannot("Chromium is missing; install it, or set CHROMIUM=PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


class Visit:
    """A tab and its errors. A request to another host is an error."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.url, self.wrong, self.allowed = url, [], []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("request", self._asked)

    def _asked(self, request):
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.wrong.append(f"request to {request.url}")

    def go(self, address=""):
        self.page.goto(f"{self.url}/{address}")
        return self.page

    def close(self):
        self.context.close()
        assert [one for one in self.wrong if not any(part in one for part in self.allowed)] == []


@pytest.fixture
def visit(browser, server):
    """Opens a tab: visit(width=390, color_scheme="dark")."""
    tabs = []

    def open_tab(width=1400, height=1000, url=None, **options):
        tabs.append(Visit(browser, url or server.url, viewport={"width": width, "height": height}, **options))
        return tabs[-1]

    yield open_tab
    for tab in tabs:
        tab.close()

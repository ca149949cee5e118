"""The committed page is built from the sources; its own checks and tests pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving import cannot
from sightline.serve.routes.page import STATIC

WEB = Path(__file__).parents[2] / "web"


@pytest.fixture(autouse=True)
def node():
    if not shutil.which("npm") or not (WEB / "node_modules").exists():
        cannot("npm or web/node_modules is missing; run make web")


def npm(*arguments, **options):
    done = subprocess.run(["npm", "run", *arguments], check=False, cwd=WEB, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_committed_page_is_current(tmp_path):
    npm("build", "--", "--outDir", str(tmp_path / "built"))
    built, shipped = files(tmp_path / "built"), files(STATIC)
    assert built.keys() == shipped.keys()
    assert [name for name in built if built[name] != shipped[name]] == []


def test_the_committed_types_of_the_api_are_current(tmp_path):
    command = [sys.executable, WEB / "openapi.py"]
    document = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    npm("types", "--", str(tmp_path / "generated.ts"), input=document)
    assert (WEB / "src" / "generated.ts").read_text("utf-8") == (tmp_path / "generated.ts").read_text("utf-8")


def test_types():
    npm("check")


def test_units():
    npm("test")

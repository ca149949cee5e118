"""The built wheel has all files of the package and nothing else; it installs with each extra."""

import os
import subprocess
import sys
import tomllib
import zipfile
from contextlib import chdir
from pathlib import Path

import pytest
from hatchling.build import build_wheel

ROOT = Path(__file__).parents[2]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with chdir(ROOT):
        return folder / build_wheel(str(folder))


def test_the_wheel_has_the_files_of_the_package_and_its_licences(wheel):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip("\0")
    package = {name.removeprefix("src/") for name in listed.split("\0") if (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == package
    assert {Path(name).name for name in about} >= {"METADATA", "entry_points.txt", "LICENSE", "licenses.md"}
    assert wheel.stat().st_size < 80 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_the_wheel_installs_and_translates(wheel, extra, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command, text=None):
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "venv")
    programs = tmp_path / "venv" / "bin"
    installed = run(sys.executable, "-m", "pip", "freeze").splitlines()
    torch = next(line for line in installed if line.startswith("torch=="))  # the build that the other tests use
    run(programs / "pip", "install", "-q", "--no-compile", "--no-deps", "--extra-index-url", CPU_INDEX, torch)
    run(programs / "pip", "install", "-q", "--no-compile", f"{wheel}[{extra}]" if extra else wheel)
    answer = run(programs / "sightline", "translate", "en-fr", text="Where is the station?\n")
    assert answer == "Où est la gare ?\n"

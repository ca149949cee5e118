"""The built wheel has all files of the package and nothing else; it installs with each extra."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_has_the_files_of_the_package_and_its_licences(wheel):
    listed = subprocess.run(["git", "ls-files", "-z", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    package = {name.removeprefix("src/") for name in listed.stdout.rstrip("\0").split("\0")}
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == package
    assert {Path(name).name for name in about} >= {"METADATA", "entry_points.txt", "LICENSE", "licenses.md"}
    assert wheel.stat().st_size < 80 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_the_wheel_installs_and_translates(wheel, extra, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    package = f"{wheel}[{extra}]" if extra else str(wheel)
    freeze = subprocess.run([sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
    torch = next(line for line in freeze.stdout.splitlines() if line.startswith("torch=="))  # the build that is tested
    subprocess.run([python, "-m", "pip", "install", "-q", torch, package], check=True, cwd=tmp_path)
    command = [tmp_path / "venv" / "bin" / "sightline", "translate", "en-fr"]
    done = subprocess.run(
        command, input="Where is the station?\n", capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Où est la gare ?\n"

"""The model compiles as one graph on every available device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "compiled.py"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiled_equals_eager(device, tmp_path):
    assert compiled(device, "some", tmp_path) == 5


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_compiled_parts_equal_eager(device, tmp_path):
    assert compiled(device, "all", tmp_path) == 12


def compiled(device, which, folder):
    """Return the number of compared parts. PyTorch's compiler does not quote the path of its own libraries, which has a
    space if the clone has one; it gets another path."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), device, which]
    packages = folder / "packages"
    packages.symlink_to(Path(torch.__file__).parents[1])
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("ok:")

"""The model compiles as one graph on every available device."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "compiled.py"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiled_equals_eager(device):
    assert compiled(device, "some") == 5


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_compiled_parts_equal_eager(device):
    assert compiled(device, "all") == 12


def compiled(device, which):
    """Return the number of compared parts."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), device, which]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("ok:")

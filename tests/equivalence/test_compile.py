"""The model compiles as one graph, on every device there is."""

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
def test_compiled_equals_eager_in_every_way(device):
    assert compiled(device, "all") == 12


def compiled(device, which):
    """How many things were compared."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), device, which]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("ok:")

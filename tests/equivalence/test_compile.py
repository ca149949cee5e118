"""The model compiles as one graph, on every device there is."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "compiled.py"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiled_equals_eager(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), device],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok:") == 11

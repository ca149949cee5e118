"""Run tests of Triton kernels in a separate process without the shape checks of the other tests, which Triton does not
support: on a GPU if available, otherwise in Triton's interpreter, which must be selected before Triton is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
INTERPRET = "TRITON_INTERPRET"

kernels = pytest.mark.skipif(INTERPRET not in os.environ, reason="run by test_kernels in a separate process")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def run_kernels(file: str) -> None:
    """Run the tests of a file with the mark `kernels`."""
    if INTERPRET in os.environ:
        pytest.skip("this is the separate process")
    options = ["--noconftest", "-p", "no:cacheprovider", "-q", "-W", "default"]
    command = [sys.executable, "-m", "pytest", *options, file]
    environment = {**os.environ, INTERPRET: "0" if CUDA else "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout

"""The model stays short enough to read."""

from pathlib import Path

import sightline

MODEL = Path(sightline.__file__).parent / "model"


def lines(*names: str) -> int:
    return sum(len((MODEL / name).read_text("utf-8").splitlines()) for name in names)


def test_the_transformer_is_at_most_400_lines():
    assert lines("transformer.py") <= 400


def test_one_forward_pass_is_at_most_700_lines():
    assert lines("transformer.py", "mask.py", "cache.py", "kernels/attention.py") <= 700

"""Check shapes at every call, choose the hypothesis profile, and sort tests into tiers.

Tiers are marks: `medium` (starts processes, trains, compiles, or needs more than a second), `browser`, and `slow`
(needs minutes or a download). `make check` runs tests without a mark, without checks of shapes, which take six times as
long as the tests themselves; `make test` runs all tests except `slow`.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

CHECKED = ["sightline.model", "sightline.search", "sightline.trace", "sightline.train.loss"]
"""The packages whose signatures are checked."""

settings.register_profile("sightline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("check", settings.get_profile("sightline"), max_examples=20)
settings.load_profile("sightline")
torch.set_num_threads(1)  # tests run in several processes,
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so do the commands that they start

MEDIUM_FILES = {
    "equivalence/test_compile.py",
    "equivalence/test_training.py",
    "learning/test_reversal.py",
    "product/test_cli.py",
    "product/test_evaluate_cli.py",
    "product/test_hub.py",
    "product/test_hugging_face_folders.py",
    "product/test_import_export_cli.py",
    "product/test_import_marian.py",
    "product/test_install.py",
    "product/test_onnx.py",
    "product/test_pairs_cli.py",
    "product/test_scripts.py",
    "product/test_serve.py",
    "product/test_shipped.py",
    "product/test_train_cli.py",
    "product/test_translate_cli.py",
    "product/test_wheel.py",
    "product/test_worker.py",
    "unit/test_signatures.py",
}
MEDIUM_FIXTURES = {"taught"}
"""They train a model."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make check`."""
    parser.addoption("--skip-shapes", action="store_true", help="do not check the shapes in signatures at every call")


def pytest_configure(config: pytest.Config) -> None:
    """Check shapes, before the first test imports a model."""
    if not config.getoption("skip_shapes"):
        install_import_hook(CHECKED, "beartype.beartype")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tiers; run lint and types first, because mypy takes longest."""
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests).as_posix()
        if file.startswith("browser/"):
            item.add_marker("browser")
        elif file in MEDIUM_FILES or MEDIUM_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("medium")
    items.sort(key=lambda item: "test_lint_and_types" not in item.name)

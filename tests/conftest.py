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
    "cli/test_cli.py",
    "cli/test_complete_cli.py",
    "cli/test_evaluate_cli.py",
    "cli/test_pairs_cli.py",
    "cli/test_shipped.py",
    "cli/test_train_cli.py",
    "cli/test_translate_cli.py",
    "docs/test_install.py",
    "docs/test_scripts.py",
    "equivalence/test_compile.py",
    "equivalence/test_training.py",
    "interop/test_hub.py",
    "interop/test_hugging_face_folders.py",
    "interop/test_import_export_cli.py",
    "interop/test_import_marian.py",
    "interop/test_onnx.py",
    "learning/test_reversal.py",
    "learning/test_tasks.py",
    "serve/test_completions.py",
    "serve/test_lesson.py",
    "serve/test_serve.py",
    "serve/test_what_if_requests.py",
    "serve/test_worker.py",
    "unit/test_signatures.py",
}
MEDIUM_FIXTURES = {"taught"}
"""They train a model."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make check`."""
    parser.addoption("--skip-shapes", action="store_true", help="do not check the shapes in signatures at every call")


def pytest_configure(config: pytest.Config) -> None:
    """Check shapes, before the first module imports a model."""
    if not config.getoption("skip_shapes"):
        install_import_hook(CHECKED, "beartype.beartype")
    config.pluginmanager.import_plugin("shared_fixtures")


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

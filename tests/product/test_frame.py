"""The frame: lint, types, budgets, the direction of imports, and a command line that is there at once."""

import ast
import importlib
import pkgutil
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import sightline

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sightline"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"
}

# Who may import whom: only what stands in an earlier row, or in one's own package.
ORDER = [
    {"errors", "folders"},
    {"config"},
    {"text", "model"},
    {"checkpoint", "data", "search", "trace"},
    {"backends"},
    {"engine"},
    {"interop"},
    {"train"},
    {"lab", "evaluate", "figures"},
    {"serve", "notebook"},
    {"cli"},
]
ONLY_IN = {
    "typer": {"cli"},
    "rich": {"cli", "train"},
    "fastapi": {"serve"},
    "uvicorn": {"serve", "cli"},
    "sacrebleu": {"evaluate"},
    "transformers": {"interop"},
    "ctranslate2": {"backends"},
    "onnx": {"interop"},
    "onnxruntime": {"interop"},
    "matplotlib": {"figures"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]],
    ids=["ruff", "format", "mypy"],
)
def test_lint_and_types(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_model_is_one_readable_file():
    assert len((SOURCE / "model" / "transformer.py").read_text().splitlines()) <= 400


def test_every_package_has_its_row():
    rows = set().union(*ORDER)
    assert {name.partition(".")[0] for name in MODULES} <= rows


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    own = name.partition(".")[0]
    row = next(i for i, packages in enumerate(ORDER) if own in packages)
    allowed = set().union(*ORDER[:row]) | {own}
    for imported in imports(MODULES[name]):
        top, _, rest = imported.partition(".")
        if top == "sightline":
            package = rest.partition(".")[0]
            assert package in allowed or package in [*sightline.__all__, "__version__"], f"{name} imports {imported}"
        assert own in ONLY_IN.get(top, {own}), f"{name} imports {top}"
    if own == "serve":
        assert not any(imported.startswith("sightline.train") for imported in imports(MODULES[name]))


@pytest.mark.parametrize("name", [n for n in MODULES if not n.startswith("cli")])
def test_all_lists_what_is_public(name):
    module = importlib.import_module(f"sightline.{name.removesuffix('.__init__')}")
    if name.endswith("__init__"):
        return
    assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))
    for public in module.__all__:
        assert hasattr(module, public)


def test_the_package_lists_what_is_public():
    for name in sightline.__all__:
        assert getattr(sightline, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'tokeniser'"):
        sightline.tokeniser  # noqa: B018
    assert re.fullmatch(r"\d+\.\d+\.\d+", sightline.__version__)


def test_no_library_code_prints():
    for name, path in MODULES.items():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), name


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_importing_the_package_does_not_import_torch():
    done = run("-c", "import sightline, sys; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


SMALLEST = """
import sys, typer
app = typer.Typer()
@app.callback()
def main(version: bool = typer.Option(False, "--version")) -> None: pass
@app.command()
def demo() -> None: pass
sys.argv = ["app", "demo", "--help"]
app()
"""
"""A program with commands and an option before them, as ours: typer loads pydantic for such."""


def processor_seconds(code):
    """What a person waits on a machine that is not busy with these tests, the least of three; and what came of it."""
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("-c", code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append((after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime))
    return min(taken), done


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["demo", "--help"], ["config", "explain", "--help"], ["--version"]]
)
def test_help_is_there_at_once_and_without_torch(arguments):
    """Not much later than the help of the smallest program of this kind, however fast the machine is just now."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: sys.stderr.write('TORCH' if 'torch' in sys.modules else 'LIGHT'))\n"
        f"sys.argv = ['sightline', *{arguments!r}]\n"
        "from sightline.cli.main import main\n"
        "main()"
    )
    smallest, _ = processor_seconds(SMALLEST)
    seconds, done = processor_seconds(code)
    assert done.stderr.endswith("LIGHT"), done.stderr
    assert done.returncode == (2 if not arguments else 0)
    assert seconds < 1.4 * smallest


def test_every_module_can_be_imported():
    for module in pkgutil.walk_packages(sightline.__path__, "sightline."):
        importlib.import_module(module.name)

"""Lint, types, size limits, the direction of imports, and the modules that `--help` loads."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

import sightline
from support import reader, translator, writer

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sightline"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"
}

# A package imports from the rows before its own and from itself.
ORDER = [
    {"choices", "errors", "lazy"},
    {"files", "special"},
    {"options"},
    {"config"},
    {"model"},
    {"text"},
    {"model_folder"},
    {"data"},
    {"search"},
    {"trace", "runs"},
    {"backends"},
    {"engine"},
    {"evaluate", "interop"},
    {"train"},
    {"bulk", "figures"},
    {"lab"},
    {"serve", "notebook"},
    {"scale"},
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
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_transformer_has_at_most_400_lines():
    assert len((SOURCE / "model" / "transformer.py").read_text("utf-8").splitlines()) <= 400


def row(package: str) -> int:
    """Return the place of a package in the order, or -1."""
    return next((i for i, packages in enumerate(ORDER) if package in packages), -1)


def test_every_package_is_in_the_import_order():
    for name in MODULES:
        assert row(name.partition(".")[0]) >= 0


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    own = name.partition(".")[0]
    for imported in imports(MODULES[name]):
        top, _, rest = imported.partition(".")
        assert own in ONLY_IN.get(top, {own}), f"{name} imports {top}"
        if top == "sightline" and rest != "__version__":
            # `from sightline import load` imports the module of `load`
            module = getattr(sightline, rest).__module__ if rest in sightline.__all__ else imported
            package = module.split(".")[1]
            assert package == own or row(package) < row(own), f"{name} imports {imported}"
    if own == "serve":
        assert not any(imported.startswith("sightline.train") for imported in imports(MODULES[name]))


# --- No test of the architecture outside of the model

MODEL_CLASSES = {"EncoderDecoder", "DecoderOnly", "EncoderOnly", "Generative"}
ANY_MODEL = {"search", "backends", "trace", "engine"}
KNOWS_THE_ARCHITECTURE = {"engine.load", "backends.ctranslate2_format"}
"""They choose the engine of a model, and refuse to write a model that the format cannot hold."""


def model_attributes() -> set[str]:
    """Return the names of attributes that only some models have."""
    models = [translator(), writer(), reader()]
    names = [set(dir(model)) - set(dir(nn.Module())) for model in models]
    return set().union(*names) - set.intersection(*names)


def architecture_tests(code: str) -> list[str]:
    """Return the expressions that ask which architecture a model has."""
    attributes, found = model_attributes(), []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asks_class = node.func.id in {"isinstance", "issubclass"}
            asks_attribute = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) > 2)
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            strings = {part.value for part in node.args[1:2] if isinstance(part, ast.Constant)}
            if (asks_class and names & MODEL_CLASSES) or (asks_attribute and strings & attributes):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name) and node.cls.id in MODEL_CLASSES:
            found.append(f"case {ast.unparse(node.cls)}")
        elif isinstance(node, ast.Compare | ast.Match | ast.Subscript):
            parts = {ast.Compare: ["left", "comparators"], ast.Match: ["subject"], ast.Subscript: ["slice"]}[type(node)]
            asked = [part for name in parts for part in ast.walk(ast.Tuple(elts=_listed(getattr(node, name))))]
            if any("architecture" in (getattr(part, "attr", ""), getattr(part, "id", "")) for part in asked):
                found.append(ast.unparse(node))
    return found


def _listed(nodes: ast.expr | list[ast.expr]) -> list[ast.expr]:
    return nodes if isinstance(nodes, list) else [nodes]


@pytest.mark.parametrize(
    "name", sorted({n for n in MODULES if n.partition(".")[0] in ANY_MODEL} - KNOWS_THE_ARCHITECTURE)
)
def test_no_test_of_the_architecture(name):
    assert architecture_tests(MODULES[name].read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("isinstance(model, EncoderDecoder)", 1),
        ("isinstance(model, transformer.DecoderOnly | EncoderOnly)", 1),
        ("isinstance(model, Generative)", 1),
        ("isinstance(module, Attend)", 0),
        ("config.architecture == 'decoder-only'", 1),
        ("'decoder-only' != self.model.config.architecture", 1),
        ("architecture in ('decoder-only', 'encoder-only')", 1),
        ("CLASSES[config.architecture]", 1),
        ("match config.architecture:\n    case 'decoder-only': pass", 1),
        ("match model:\n    case DecoderOnly(): pass", 1),
        ("f'{config.architecture} cannot be converted'", 0),
        ("hasattr(model, 'encoder')", 1),
        ("getattr(model, 'decoder', None)", 1),
        ("hasattr(os, 'sched_getaffinity')", 0),
    ],
)
def test_tests_of_the_architecture_are_found(code, count):
    assert len(architecture_tests(code)) == count


PAGE = {
    path: path.read_text("utf-8")
    for path in (ROOT / "web" / "src").rglob("*")
    if path.suffix in {".ts", ".svelte"} and path.name != "generated.ts" and not path.name.endswith(".test.ts")
}
STACK_NAMES = re.compile(
    r"architecture|(?:encoder|decoder)-(?:decoder|only)"
    r"|[\"'`/(|^](?:encoder|decoder)\b[^ ]"  # a string, or a pattern, that begins with the name of a stack
    r"|(?:config|stacks|tokens|ids)\??\.(?:encoder|decoder)\b"
)


def without_comments(code: str) -> str:
    return re.sub(r"/\*.*?\*/|<!--.*?-->|(?<!:)//.*?$", "", code, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", sorted(PAGE), ids=lambda path: path.name)
def test_no_test_of_the_architecture_in_the_page(path):
    """The manifest of a trace states the stacks and their sides; the task of a model states what it does."""
    assert STACK_NAMES.findall(without_comments(PAGE[path])) == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('model.architecture === "x"', 1),
        ('kind === "decoder-only"', 1),
        ('trace.hasStack("encoder")', 1),
        ('trace.has("decoder.output")', 1),
        ("trace.has(`decoder.layers.${i}`)", 1),
        ("/^(encoder|decoder)\\.rotary$/", 1),
        ("trace.config.encoder.layers", 1),
        ("// the encoder's layers, as in encoder.layers.0", 0),
        ("`${stack.name}.layers`", 0),
        ('"The encoder reads all words."', 0),
    ],
)
def test_tests_of_the_architecture_in_the_page_are_found(code, count):
    assert len(STACK_NAMES.findall(without_comments(code))) == count


# --- Public names


LAZY = {f"sightline.{path.parent.name}" for path in SOURCE.glob("*/__init__.py") if "lazy_exports" in path.read_text()}
PUBLIC = ["sightline", *(name for _, name, _ in pkgutil.iter_modules(sightline.__path__, "sightline."))]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_sorted_and_exist(name):
    """A lazy name must not be that of a submodule, which replaces it in the package when it is imported."""
    package = importlib.import_module(name)
    names = getattr(package, "__all__", [])
    assert names == sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert set(names) <= set(dir(package))
    for public in names:
        assert not isinstance(getattr(package, public), ModuleType)
    if hasattr(package, "__getattr__"):
        assert not set(names) & {module for _, module, _ in pkgutil.iter_modules(package.__path__)}
        with pytest.raises(AttributeError, match="has no attribute 'tokeniser'"):
            package.tokeniser  # noqa: B018


def test_the_package_lists_what_is_public():
    for name in sightline.__all__:
        assert getattr(sightline, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", sightline.__version__)


def test_no_library_code_prints():
    for name, path in MODULES.items():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), name


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["sightline", *sorted(LAZY)])
def test_importing_a_package_imports_none_of_its_modules(name):
    done = run(
        "-c", f"import {name}, sys; print(*sorted(m for m in sys.modules if m.startswith(('sightline', 'torch'))))"
    )
    assert set(done.stdout.split()) == {"sightline", "sightline.lazy", name}, done.stderr


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
"""The smallest program of the same kind: one command, and an option before it."""
LIGHT = {"choices", "cli", "errors", "files", "lazy", "special", "options"}
"""The only parts of the package that `--help` needs."""


def loaded_modules(code: str) -> tuple[set[str], int]:
    """Return the modules that a program has loaded when it ends, and its exit code."""
    at_exit = "import atexit, sys\natexit.register(lambda: sys.stderr.write('\\nLOADED ' + ' '.join(sys.modules)))\n"
    done = run("-c", at_exit + code)
    return set(done.stderr.rpartition("LOADED ")[2].split()), done.returncode


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["demo", "--help"], ["config", "explain", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(arguments):
    """Help loads typer, the light modules of the package, and few modules of the standard library."""
    smallest, _ = loaded_modules(SMALLEST)
    code = f"sys.argv = ['sightline', *{arguments!r}]\nfrom sightline.cli.main import main\nmain()"
    loaded, exit_code = loaded_modules(code)
    assert exit_code == (2 if not arguments else 0)
    ours = {name for name in loaded if name.partition(".")[0] == "sightline"}
    assert "sightline.cli.main" in ours
    assert {name.split(".")[1] for name in ours - {"sightline"}} <= LIGHT
    more = loaded - smallest - ours
    assert {name for name in more if name.partition(".")[0] not in sys.stdlib_module_names} == set()
    assert len(more) <= 30, sorted(more)


def test_every_module_can_be_imported():
    for module in pkgutil.walk_packages(sightline.__path__, "sightline."):
        importlib.import_module(module.name)


def messages(code: str) -> list[str]:
    """Return the strings of a module, without its docstrings and annotations."""
    tree = ast.parse(code)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in strings if id(node) not in documentation]


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.partition(".")[0] != "cli"))
def test_messages_of_the_library_contain_no_flags(name):
    """Messages name options; the command line turns them into its flags."""
    found = [text for text in messages(MODULES[name].read_text("utf-8")) if re.search(r"(?<![\w-])--[a-z]", text)]
    assert found == []

"""What the documents say is so: their code runs, their commands exist, what is generated is up to date."""

import doctest
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from sightline.cli.main import app
from sightline.config import ServeConfig
from sightline.serve.problems import KINDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"")


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """The code blocks of a page in some languages, each behind as many empty lines as stand above it in the page."""
    text = page.read_text()
    found = [(match[1], "\n" * (text.count("\n", 0, match.start(2))) + match[2]) for match in BLOCK.finditer(text)]
    return [(language, code) for language, code in found if language in languages]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_and_commands_run_and_give_what_is_shown(page, tmp_path, monkeypatch):
    """The blocks of a page run one after another, in one folder; what a prompt shows below it must come out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, object] = {"__name__": "__main__"}
    for language, code in blocks(page, "python", "pycon", "sh"):
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
        elif language == "sh":
            for line in code.splitlines():
                run_command(page, line, tmp_path)
        else:
            test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            runner.run(test, clear_globs=False)
            names = test.globs
            assert runner.summarize(verbose=False).failed == 0


def run_command(page: Path, line: str, folder: Path) -> None:
    """Commands of ours run as they stand; those of make must name a target; options given to torchrun must be ours."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["sightline"]:
        command = [sys.executable, "-c", "from sightline.cli.main import main; main()", *words[1:]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    elif words[:1] == ["torchrun"]:
        ours = words[words.index("sightline.cli.main") + 1 :]
        known = {option for parameter in get_command(app).commands[ours[0]].params for option in parameter.opts}
        assert {word for word in ours if word.startswith("--")} <= known, line
    elif words[:1] == ["make"]:
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), line
    elif words[:1] == ["python"]:
        assert (ROOT / words[1]).exists(), line
    else:
        assert words[:1] in ([], ["git"], ["cd"]), f"{page.name}: nobody checks {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link, image in LINK.findall(page.read_text()):
        target = link or image
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def test_the_tree_is_the_repository():
    tree = next(code for language, code in blocks(ROOT / "CONTRIBUTING.md", "text") if "src/sightline/" in code)
    above: list[str] = []
    named = set()
    for line in filter(str.strip, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        above[depth:] = [name]
        path = ROOT / "".join(above)
        assert path.exists(), path
        named.add(path.resolve())
    for path in (ROOT / "src" / "sightline").rglob("*.py"):
        if path.name != "__init__.py":
            assert path.resolve() in named or path.parent.resolve() in named, f"{path} is not in the tree"


def test_the_reference_is_generated_from_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["generate.py", str(tmp_path)])
    monkeypatch.setenv("COLUMNS", "100")
    runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
    made = sorted(tmp_path.iterdir())
    assert len(made) >= 4
    for page in made:
        assert page.read_text() == (ROOT / "docs" / "reference" / page.name).read_text(), f"run make docs: {page.name}"


def test_the_results_are_put_together_from_what_was_measured():
    report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["report"]
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8") == report()


def test_every_result_tells_on_what_it_was_measured():
    """A machine, versions, and a commit of this history, where one can have the code that was measured."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    whole = git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        result = json.loads(file.read_text("utf-8"))
        for part in [result] if "results" in result or "sizes" in result else result.values():
            told = part.get("where", part)
            assert all(told[key] for key in ("machine", "python", "torch", "commit")), file.name
            assert not whole or git("merge-base", "--is-ancestor", told["commit"], "HEAD").returncode == 0, file.name


def test_the_guide_to_serving_has_every_option_and_every_problem():
    page = (ROOT / "docs" / "guides" / "serve.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\S+) \| .+ \|$", page, re.MULTILINE))
    options = {name: str(field.default) for name, field in ServeConfig.model_fields.items()}
    assert rows == options | {name: str(kind.status) for name, kind in KINDS.items()}


def test_no_path_of_a_machine_and_no_cache_is_committed():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not [f for f in files if re.search(r"__pycache__|\.venv|node_modules|\.egg-info|\.pyc$", f)]
    home = str(Path.home())
    for file in files:
        text = (ROOT / file).read_text("utf-8", errors="ignore") if (ROOT / file).exists() else ""
        assert str(ROOT.parent) + "/" not in text, file
        assert home + "/" not in text, file

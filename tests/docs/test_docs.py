"""The documentation: its code runs, its commands exist, its links lead to files, its generated pages are current."""

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
    """Return the code blocks in these languages, each after as many empty lines as the page has before it."""
    text = page.read_text()
    found = [(match[1], "\n" * (text.count("\n", 0, match.start(2))) + match[2]) for match in BLOCK.finditer(text)]
    return [(language, code) for language, code in found if language in languages]


@pytest.mark.medium
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_and_commands_of_a_page_run(page, tmp_path, monkeypatch):
    """Run the blocks of a page in order, in one folder; check the output that the page shows after a prompt."""
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
    """Run a command of Sightline; check the target of a make command and the options of a torchrun command."""
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
        assert words[:1] in ([], ["git"], ["cd"]), f"{page.name}: no test knows how to check {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for link, image in LINK.findall(page.read_text()):
        target = link or image
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def test_the_tree_in_contributing_lists_every_module():
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


def test_reference_pages_are_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["generate.py", str(tmp_path)])
    monkeypatch.setenv("COLUMNS", "100")
    runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
    made = sorted(tmp_path.iterdir())
    assert len(made) >= 4
    for page in made:
        assert page.read_text() == (ROOT / "docs" / "reference" / page.name).read_text(), f"run make docs: {page.name}"


def test_benchmark_results_page_is_up_to_date():
    report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["report"]
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8") == report()


def test_every_benchmark_result_names_machine_versions_and_commit():
    """The commit is that of unchanged code. It may be missing in the history of a clone, after a squash merge."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        result = json.loads(file.read_text("utf-8"))
        for part in [result] if "results" in result or "sizes" in result else result.values():
            origin = part.get("where", part)
            assert all(origin[key] for key in ("machine", "python", "torch")), file.name
            assert re.fullmatch(r"[0-9a-f]{7,40}", origin["commit"]), file.name


def test_the_serving_guide_lists_every_limit_and_problem():
    page = (ROOT / "docs" / "guides" / "serve.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\S+) \| .+ \|$", page, re.MULTILINE))
    assert rows == {name: str(kind.status) for name, kind in KINDS.items()}
    assert set(re.findall(r"`(max_\w+)`", page)) == {name for name in ServeConfig.model_fields if "max_" in name}


HOME = re.compile(r"(?<![\w.$}/-])(/home/[\w.-]+|/Users/[\w.-]+|/root)/|\b[A-Z]:\\\\?Users\\")


def machine_path(text: str, clone: Path) -> str | None:
    """Return the first path of a home folder, or of this clone, in a text.

    A clone near the root, such as /app or /src/sightline, has a path that other things are called too.
    """
    here = re.compile(rf"(?<![\w.$}}/-]){re.escape(str(clone))}(?=[/\\s\"'`]|$)")
    found = HOME.search(text) or (here.search(text) if len(clone.parts) > 3 else None)
    return found and found[0]


def test_no_path_of_a_machine_is_committed():
    for file in committed():
        text = (ROOT / file).read_text("utf-8", errors="ignore") if (ROOT / file).exists() else ""
        assert machine_path(text, ROOT) is None, file


@pytest.mark.parametrize(
    ("text", "clone", "found"),
    [
        ("cd /h*ome/me/code", "/srv/app", True),
        ('"/U*sers/Me/x"', "/srv/app", True),
        ("open /r*oot/.cache/x", "/srv/app", True),
        (r"C:\U*sers\me", "/srv/app", True),
        ("see /srv/a b/sightline/tests", "/srv/a b/sightline", True),
        ("the models of /app and /tmp/model", "/app", False),
        ("see /v1/models/en-fr and web/src", "/v1/models", False),
        ("${ROOT}/r*oot/x and a/h*ome/me/x", "/srv/app", False),
    ],
)
def test_paths_of_a_machine_are_found_wherever_the_clone_is(text, clone, found):
    text = text.replace("*", "")  # so that this file does not have these paths
    assert (machine_path(text, Path(clone)) is not None) == found


def test_no_cache_is_committed():
    assert not [f for f in committed() if re.search(r"__pycache__|\.venv|node_modules|\.egg-info|\.pyc$", f)]


def committed() -> list[str]:
    """Return the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.rstrip("\0").split("\0")

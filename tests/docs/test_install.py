"""`make` chooses the build of PyTorch. A tiny package takes its place, from an index on this machine."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "2.13.0"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("make") is None, reason="needs make; the choice is made on Linux only"
)


def wheel(folder: Path, version: str) -> None:
    """Write a package `torch` of this version."""
    folder.mkdir(parents=True)
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as file:
        file.writestr("torch.py", f"__version__ = {version!r}\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The address of three indexes: `default`, `cpu` and `empty`, which has no build."""
    folder = tmp_path_factory.mktemp("index")
    wheel(folder / "default" / "torch", VERSION)
    wheel(folder / "cpu" / "torch", f"{VERSION}+cpu")
    (folder / "empty" / "torch").mkdir(parents=True)
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def make(folder, host, *, system="Linux", has_gpu=False, cpu="cpu", default="default"):
    """Install PyTorch from the indexes with these names."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    tools = folder / "tools"
    tools.mkdir()
    for program in ("awk", "bash", "env", "touch"):
        (tools / program).symlink_to(shutil.which(program))
    (tools / "uname").write_text(f"#!{shutil.which('bash')}\necho {system}\n")
    (tools / "uname").chmod(0o755)
    if has_gpu:
        (tools / "nvidia-smi").symlink_to(shutil.which("true"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environment |= {"PATH": str(tools), "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{host}/{default}"}
    command = [shutil.which("make"), f"PYTHON={sys.executable}", f"CPU_INDEX={host}/{cpu}", ".venv/torch"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "version", "line"),
    [
        ({}, f"{VERSION}+cpu", "CPU build, because there is no NVIDIA GPU"),
        ({"has_gpu": True}, VERSION, "default build, because there is an NVIDIA GPU"),
        ({"system": "Darwin"}, VERSION, "default build, which has no CUDA on Darwin"),
        ({"cpu": "missing"}, VERSION, "default build with CUDA (a large download), because http"),
        ({"cpu": "empty"}, VERSION, "default build with CUDA (a large download), because the CPU build cannot"),
    ],
    ids=["cpu", "gpu", "macos", "offline", "failing"],
)
def test_the_cpu_build_is_installed_without_a_gpu(tmp_path, host, options, version, line):
    done = make(tmp_path, host, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    python = tmp_path / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, check=True)
    assert found.stdout.decode().strip() == version, done.stdout + done.stderr
    *_, last = (text for text in done.stdout.splitlines() if text.startswith("=="))
    assert last.startswith(f"== Installing PyTorch: the {line}")


def test_a_failed_installation_is_repeated(tmp_path, host):
    done = make(tmp_path, host, cpu="missing", default="empty")
    assert done.returncode != 0
    assert "No matching distribution found for torch" in done.stderr
    assert not (tmp_path / ".venv" / "torch").exists()

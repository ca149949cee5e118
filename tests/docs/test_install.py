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
def index(tmp_path_factory):
    """The address of an index with a CPU build."""
    folder = tmp_path_factory.mktemp("index")
    wheel(folder / "torch", f"{VERSION}+cpu")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("has_gpu", "answers", "version"),
    [(False, True, f"{VERSION}+cpu"), (True, True, VERSION), (False, False, VERSION)],
    ids=["cpu", "gpu", "offline"],
)
def test_the_cpu_build_is_installed_without_a_gpu(tmp_path, index, has_gpu, answers, version):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    tools, default = tmp_path / "tools", tmp_path / "default"
    tools.mkdir()
    for program in ("awk", "bash", "env", "touch", "uname"):
        (tools / program).symlink_to(shutil.which(program))
    if has_gpu:
        (tools / "nvidia-smi").symlink_to(shutil.which("true"))
    wheel(default, VERSION)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environment |= {"PATH": str(tools), "PIP_FIND_LINKS": str(default), "PIP_CONFIG_FILE": os.devnull}
    environment |= {"PIP_INDEX_URL": "http://127.0.0.1:9/none", "PIP_RETRIES": "0"}
    url = index if answers else "http://127.0.0.1:9/none"
    command = [shutil.which("make"), f"PYTHON={sys.executable}", f"CPU_INDEX={url}", ".venv/torch"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    python = tmp_path / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, check=True)
    assert found.stdout.decode().strip() == version, done.stdout + done.stderr
    assert ("the CPU build" if version.endswith("cpu") else "the default build") in done.stdout

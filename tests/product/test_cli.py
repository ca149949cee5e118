"""The command line, as a person runs it."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib

import httpx
import pytest
from typer.main import get_command

from sightline.cli.demo import SAID
from sightline.cli.main import app, with_flags
from sightline.config import Config, load
from sightline.data.builtin import riddle
from sightline.model_folder import bundled_models
from sightline.options import presets


def sightline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from sightline.cli.main import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100", **environment}
    )


def test_demo_translates_explains_teaches_and_opens_the_page(tmp_path):
    command = [sys.executable, "-m", "sightline.cli.main", "demo", "--out", str(tmp_path / "model"), "--port", "0"]
    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen(command, stdout=said, stderr=subprocess.PIPE, text=True)
        url = next(found[1] for line in running.stderr if (found := re.search(r"^Serving .* at (http\S+)", line)))
        assert "<title>Sightline</title>" in httpx.get(url).text
        models = [model["name"] for model in httpx.get(f"{url}/v1/models").json()["models"]]
        assert models == [*(name for name in SAID if name in bundled_models()), "yours"]
        asked = {"model": "yours", "text": riddle()[0].source}
        answer = httpx.post(f"{url}/v1/translate", json=asked, timeout=60).json()
        assert answer["translations"][0]["text"] == riddle()[0].target
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 0
    said = (tmp_path / "said").read_text()
    for pair in riddle():
        assert f"  {pair.source}\n  {pair.target}\n" in said
    rows = re.findall(r"^(\S+) +(\d\.\d{3}) ━* +(\d\.\d{3})", said, re.MULTILINE)
    looks = {word: (float(tired), float(wide)) for word, tired, wide in rows}
    assert looks["animal"][0] > 10 * looks["street"][0]
    assert looks["street"][1] > 10 * looks["animal"][1]
    text = " ".join(said.split())
    largest = re.search(r"largest difference to what ran: (\S+)\.", text)
    assert largest is not None
    assert float(largest.group(1)) <= 1e-5
    answers = re.findall(r"(before|after) .*?(right|wrong)", said)
    assert answers == [("before", "wrong"), ("after", "right")] * 2
    shares = re.search(r"has not seen, ([\d.]+)% are right to the letter, and ([\d.]+)% of the pronouns", text)
    assert shares is not None
    assert float(shares.group(1)) >= 99
    assert float(shares.group(2)) >= 98
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_demo_tells_at_once_what_cannot_be(tmp_path):
    (tmp_path / "kept").write_text("mine")
    done = sightline("demo", "--no-serve", "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path}: there is something here already; choose another --out.\n"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sightline("demo", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} of 127.0.0.1 cannot be used" in done.stderr
    for command in (["demo"], ["serve", "coref"]):
        done = sightline(*command, "--port", "65536")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'--port'" in done.stderr
        assert "65535" in done.stderr
    done = sightline("demo", "--no-serve", "--out", str(tmp_path / "kept" / "model"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path / 'kept' / 'model'}: cannot be written: Not a directory.\n"


@pytest.mark.parametrize("command", [["demo"], ["serve", "coref"]])
def test_what_serving_needs_is_told_where_it_is_missing(command):
    """As without the extra `serve`."""
    code = "import sys; sys.modules['uvicorn'] = None; from sightline.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "serving needs uvicorn; in the clone, pip install -e '.[serve]' brings it.\n"


def test_config_explain_gives_a_file_that_config_reads(tmp_path):
    done = sightline("config", "explain", "--preset", "fast", "--set", "model.norm=post")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "mine.toml"
    file.write_text(done.stdout)
    assert load(file=file) == load("fast", sets=["model.norm=post"])
    assert Config(**tomllib.loads(done.stdout)).model.encoder.layers == 12


def test_config_presets():
    done = sightline("config", "presets")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(presets())
    assert "63.0 M" in next(line for line in done.stdout.splitlines() if line.startswith("base"))


def test_doctor():
    done = sightline("doctor")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^cpu +a model runs here$", done.stdout, re.MULTILINE)
    assert re.search(r"^ctranslate2 +\d", done.stdout, re.MULTILINE)


def test_user_errors_are_one_sentence_with_exit_code_2():
    done = sightline("config", "explain", "--set", "model.d_modle=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "model.d_modle" in done.stderr
    assert "d_model" in done.stderr
    assert sightline("transalte").returncode == 2


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("translate", "`resume` continues `out`.", "--resume continues --out."),
        ("translate", "`beams` must be at least 1, got 0.", "--beam must be at least 1, got 0."),
        ("translate", "`require` and `forbid`, `backend`", "--within and --without, --engine"),
        ("translate", "Use `beams = 1` or `backend='torch'`.", "Use --beam 1 or --engine torch."),
        ("translate", "`sample=True` is missing.", "--sample is missing."),
        ("translate", "`max_ratio` and `model.norm` are not flags.", "`max_ratio` and `model.norm` are not flags."),
        ("translate", "`model`: not found.", "MODEL: not found."),
        ("train", "`init_from` and `valid_source`", "--from and --valid-source"),
        ("train", "`beams` must be at least 1.", "`beams` must be at least 1."),
        ("serve", "`origins`", "--allow-origin"),
        ("export", "`verify=False` skips it; `verify` does not.", "--no-verify skips it; --verify does not."),
    ],
)
def test_messages_name_the_flags_of_the_running_command(command, message, shown):
    assert with_flags(message, get_command(app).commands[command].params) == shown


def test_flags_replace_options_in_a_real_run():
    done = sightline("translate", "coref", "--resume")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("--resume ")
    assert "--out" in done.stderr
    assert "`" not in done.stderr


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", sightline("--version").stdout)

"""The command line in its own process."""

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

from sightline.cli.demo import SENTENCES_TO_TRY
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


def test_demo(tmp_path):
    command = [sys.executable, "-m", "sightline.cli.main", "demo", "--out", str(tmp_path / "model"), "--port", "0"]
    with (tmp_path / "output").open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True)
        url = next(found[1] for line in running.stderr if (found := re.search(r"^Serving .* at (http\S+)", line)))
        assert "<title>Sightline</title>" in httpx.get(url, timeout=120).text
        models = [model["name"] for model in httpx.get(f"{url}/v1/models", timeout=120).json()["data"]]
        assert models == [*(name for name in SENTENCES_TO_TRY if name in bundled_models()), "yours"]
        body = {"model": "yours", "text": riddle()[0].source}
        answer = httpx.post(f"{url}/v1/translate", json=body, timeout=120).json()
        assert answer["translations"][0]["text"] == riddle()[0].target
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 0
    output = (tmp_path / "output").read_text()
    for pair in riddle():
        assert f"  {pair.source}\n  {pair.target}\n" in output
    rows = re.findall(r"^(\S+) +(\d\.\d{3}) ━* +(\d\.\d{3})", output, re.MULTILINE)
    weights = {word: (float(tired), float(wide)) for word, tired, wide in rows}
    assert weights["animal"][0] > 10 * weights["street"][0]
    assert weights["street"][1] > 10 * weights["animal"][1]
    text = " ".join(output.split())
    largest = re.search(r"largest difference: (\S+)\.", text)
    assert largest is not None
    assert float(largest.group(1)) <= 1e-5
    answers = re.findall(r"(before|after) .*?(right|wrong)", output)
    assert answers == [("before", "wrong"), ("after", "right")] * 2
    shares = re.search(r"unseen sentences, ([\d.]+)% are translated exactly, and ([\d.]+)% of their pronouns", text)
    assert shares is not None
    assert float(shares.group(1)) >= 99
    assert float(shares.group(2)) >= 98
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_first_translation_of_the_demo_does_not_import_the_compiler(tmp_path):
    """Importing torch's compiler takes about a second."""
    code = f"""
import sys
from rich.console import Console
from sightline.cli import demo
from sightline.model_folder import ModelFolder, count_parameters, save_model
demo.translate(Console())
model = ModelFolder("coref").load_model()
assert count_parameters(model.config) == count_parameters(model) == ModelFolder("coref").count_parameters()
save_model(model, {str(tmp_path)!r})
sys.exit("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_demo_checks_folder_and_port_first(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (tmp_path, file, file / "model"):
        done = sightline("demo", "--no-serve", "--out", str(out))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("--out ")
        assert str(out) in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = sightline("demo", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"--port {port} of 127.0.0.1 ")
    for command in (["demo"], ["serve", "coref"]):
        done = sightline(*command, "--port", "65536")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'--port'" in done.stderr
        assert "65535" in done.stderr


@pytest.mark.parametrize("command", [["demo"], ["serve", "coref"]])
def test_missing_packages_of_the_extra_serve(command):
    code = "import sys; sys.modules['uvicorn'] = None; from sightline.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "uvicorn" in done.stderr
    assert "sightline[serve]" in done.stderr


def test_config_explain_prints_a_valid_config_file(tmp_path):
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
    assert re.search(r"^cpu +model runs$", done.stdout, re.MULTILINE)
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
        ("translate", "`beams` must be at least 1, got 0.", "--beams must be at least 1, got 0."),
        ("translate", "`require` and `forbid`, `backend`", "--require and --forbid, --backend"),
        ("translate", "Use `beams = 1` or `backend='torch'`.", "Use --beams 1 or --backend torch."),
        ("translate", "`sample=True` is missing.", "--sample is missing."),
        (
            "translate",
            "Use `beams` = 1. `precision` = 'int8', `sample` = true",
            "Use --beams 1. --precision int8, --sample",
        ),
        ("translate", "`max_ratio` = 2.5 is invalid.", "`max_ratio` = 2.5 is invalid."),
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

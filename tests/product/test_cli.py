"""The command line, as a person runs it."""

import os
import re
import subprocess
import sys
import tomllib

from sightline.config import Config, load, presets


def sightline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from sightline.cli.main import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100", **environment}
    )


def test_demo_shows_real_numbers_and_teaches_a_model_the_riddle(tmp_path):
    done = sightline("demo", "--out", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\S+ +[+-]\d+\.\d{3} +[+-]\d+\.\d{3} +(\d\.\d{3}) +━*", done.stdout, re.MULTILINE)
    assert len(rows) == 12
    assert abs(sum(map(float, rows)) - 1) < 0.01
    assert "the same words" in done.stdout
    for line in ("without positions   0.00000", "with the look-ahead mask      0.000000"):
        assert line in done.stdout
    text = " ".join(done.stdout.split())
    largest = re.search(r"largest difference to what the fused kernels gave: (\S+)\.", text)
    assert largest is not None
    assert float(largest.group(1)) <= 1e-5
    answers = re.findall(r"(before|after) .*?(right|wrong)", done.stdout)
    assert answers == [("before", "wrong"), ("after", "right")] * 2
    shares = re.search(r"has not seen, ([\d.]+)% are right to the letter, and ([\d.]+)% of the pronouns", text)
    assert shares is not None
    assert float(shares.group(1)) >= 99
    assert float(shares.group(2)) >= 98
    assert (tmp_path / "model" / "model.safetensors").exists()


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
    assert re.search(
        r"^cpu +a model runs here; its logits differ from the CPU's by 0.0e\+00$", done.stdout, re.MULTILINE
    )


def test_a_users_mistake_is_one_sentence_and_exit_2():
    done = sightline("config", "explain", "--set", "model.d_modle=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "model.d_modle: there is no such option, did you mean 'd_model'?\n"
    assert sightline("transalte").returncode == 2


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", sightline("--version").stdout)

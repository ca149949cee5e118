"""Fixtures of the tests of the whole product."""

import pytest

from sightline.cli.main import main
from taught import taught

__all__ = ["taught"]


@pytest.fixture
def here(monkeypatch, capfd):
    """Run a command in this process, which has loaded torch already; return exit code, stdout and stderr."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["sightline", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capfd.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run

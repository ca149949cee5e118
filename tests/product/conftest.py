"""What these tests share."""

import pytest

from sightline.cli.main import main
from taught import taught

__all__ = ["taught"]


@pytest.fixture
def here(monkeypatch, capfd):
    """A command in this process, which has torch already: its exit code, and what it says."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["sightline", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        told = capfd.readouterr()
        return stopped.value.code, told.out, told.err

    return run

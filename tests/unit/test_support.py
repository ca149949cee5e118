"""The helpers of the tests."""

import pytest

from sightline.errors import ConfigError, InputError, SightlineError
from support import raises


def fail(error):
    raise error


def test_raises_accepts_the_expected_error():
    with raises(InputError, option="beams", value=0) as caught:
        fail(InputError("`beams` must be at least 1, got 0.", option="beams", value=0))
    assert caught.value.option == "beams"
    with raises(InputError, match="damaged"):
        fail(InputError("The file is damaged."))


@pytest.mark.parametrize(
    "error",
    [
        InputError("`beams` must be at least 1, got 0."),
        InputError("`width` must be at least 1, got 0.", option="width", value=0),
        InputError("`beams` must be at least 1, got 1.", option="beams", value=1),
        InputError("`beams` must be at least 1, got 0.", option="beams", value=False),
        InputError("must be at least 1, got 0.", option="beams", value=0),
    ],
)
def test_raises_rejects_another_option_value_or_message(error):
    with pytest.raises(AssertionError), raises(InputError, option="beams", value=0):
        fail(error)


def test_raises_rejects_another_type():
    with pytest.raises(ConfigError), raises(InputError):
        fail(ConfigError("wrong"))
    with pytest.raises(AssertionError, match="subclass"), raises(SightlineError):
        fail(ConfigError("wrong"))
    with pytest.raises(AssertionError, match="option is"), raises(ConfigError):
        fail(ConfigError("`beams` is wrong.", option="beams"))

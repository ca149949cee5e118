"""Learning rates by their definitions."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import ConfigError
from sightline.train.schedule import SCHEDULES, learning_rate

WARMUPS = st.integers(1, 500)


@given(step=st.integers(1, 10_000), warmup=WARMUPS)
def test_noam_is_the_papers_equation_3(step, warmup):
    expected = 512**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert learning_rate("noam", step, peak=1, warmup=warmup, total=0) == pytest.approx(expected)


@given(warmup=WARMUPS, schedule=st.sampled_from([s for s in SCHEDULES if s != "noam"]))
def test_it_rises_to_the_peak_and_never_rises_again(warmup, schedule):
    rates = [learning_rate(schedule, s, peak=2.0, warmup=warmup, total=1000) for s in range(1, 1001)]
    assert max(rates) == pytest.approx(2.0)
    assert rates[warmup - 1] == pytest.approx(2.0)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup - 1 :]))
    assert min(rates) >= 0


def test_noam_and_inverse_sqrt_are_one_curve():
    peak = 512**-0.5 * 400**-0.5
    for step in (1, 100, 400, 401, 5000):
        noam = learning_rate("noam", step, peak=1, warmup=400, total=0)
        assert learning_rate("inverse-sqrt", step, peak=peak, warmup=400, total=0) == pytest.approx(noam)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_they_end_at_zero_and_stay_there(schedule):
    assert learning_rate(schedule, 1000, peak=1, warmup=10, total=1000) == 0
    assert learning_rate(schedule, 2000, peak=1, warmup=10, total=1000) == 0
    assert learning_rate(schedule, 505, peak=1, warmup=10, total=1000) == pytest.approx(0.5)


def test_an_unknown_one_is_named():
    with pytest.raises(ConfigError, match="there is no schedule 'noom'; known are noam, inverse-sqrt"):
        learning_rate("noom", 5, peak=1, warmup=1, total=9)

"""Learning rate schedules equal their definitions."""

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.config import TrainConfig
from sightline.train.schedule import learning_rate

WARMUPS = st.integers(1, 500)
SCHEDULES = get_args(TrainConfig.model_fields["schedule"].annotation)


@given(step=st.integers(1, 10_000), warmup=WARMUPS)
def test_noam_is_equation_3(step, warmup):
    expected = 512**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert learning_rate("noam", step, peak=1, warmup=warmup, total=0) == pytest.approx(expected)


@given(warmup=WARMUPS, schedule=st.sampled_from([s for s in SCHEDULES if s != "noam"]))
def test_warm_up_rises_to_the_peak_and_the_rate_never_rises_again(warmup, schedule):
    rates = [learning_rate(schedule, s, peak=2.0, warmup=warmup, total=1000) for s in range(1, 1001)]
    assert max(rates) == pytest.approx(2.0)
    assert rates[warmup - 1] == pytest.approx(2.0)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup - 1 :]))
    assert min(rates) >= 0


def test_noam_equals_inverse_sqrt():
    peak = 512**-0.5 * 400**-0.5
    for step in (1, 100, 400, 401, 5000):
        noam = learning_rate("noam", step, peak=1, warmup=400, total=0)
        assert learning_rate("inverse-sqrt", step, peak=peak, warmup=400, total=0) == pytest.approx(noam)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_cosine_and_linear_end_at_zero(schedule):
    assert learning_rate(schedule, 1000, peak=1, warmup=10, total=1000) == 0
    assert learning_rate(schedule, 2000, peak=1, warmup=10, total=1000) == 0
    assert learning_rate(schedule, 505, peak=1, warmup=10, total=1000) == pytest.approx(0.5)

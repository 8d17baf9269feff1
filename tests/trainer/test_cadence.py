from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.cadence import Every, cadence


@given(st.integers(1, 20), st.lists(st.integers(1, 50), max_size=30))
def test_fires_exactly_when_a_multiple_is_crossed(n, jumps):
    every, step = Every(steps=n), 0
    for jump in jumps:
        before, step = step, step + jump
        assert every.due(SimpleNamespace(global_step=step)) == (before // n < step // n)


def test_what_lies_behind_the_start_does_not_fire_and_a_rollback_lets_it_fire_again():
    every = Every(samples=100)
    every.start(SimpleNamespace(samples_seen=250))
    assert not every.due(SimpleNamespace(samples_seen=299))
    assert every.due(SimpleNamespace(samples_seen=300))
    assert not every.due(SimpleNamespace(samples_seen=150))
    assert every.due(SimpleNamespace(samples_seen=200))


def test_two_callbacks_given_the_same_cadence_do_not_share_a_mark():
    shared = Every(steps=2)
    first, second = cadence("A", shared), cadence("B", shared)
    now = SimpleNamespace(global_step=2)
    assert first.due(now)
    assert second.due(now)


@pytest.mark.parametrize("arguments", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"steps": 1.5}, {"epochs": True}])
def test_a_cadence_takes_one_positive_unit(arguments):
    with pytest.raises(ValueError, match="Every"):
        Every(**arguments)

"""Windows close by rows, by wall time and by event time, and what cannot work is refused."""

import json

import pytest

from trainer.errors import ConfigurationError, DataError
from trainer.metrics.window import Window, WindowClock


def test_windows_by_rows_close_when_a_multiple_is_crossed():
    clock = WindowClock(Window(rows=1000))
    clock.start(rows_seen=500, wall=0.0)
    assert [clock.closed(rows, 0.0) for rows in (999, 1000, 1001, 3500, 3999, 4000)] == [
        False, True, False, True, False, True,
    ]  # fmt: skip
    restored = WindowClock(Window(rows=1000))
    restored.load_state_dict(json.loads(json.dumps(clock.state_dict(0.0))), wall=9.0)
    restored.start(4999, 9.0)
    assert [restored.closed(rows, 9.0) for rows in (4999, 5000)] == [False, True]


def test_windows_by_wall_time_keep_their_age_over_a_restart():
    clock = WindowClock(Window(seconds=60))
    clock.start(0, wall=100.0)
    assert [clock.closed(1, wall) for wall in (159.0, 161.0, 200.0, 221.0)] == [False, True, False, True]
    restored = WindowClock(Window(seconds=60))
    restored.load_state_dict(clock.state_dict(wall=251.0), wall=5000.0)
    restored.start(0, 5000.0)
    assert [restored.closed(1, wall) for wall in (5029.0, 5030.0)] == [False, True]


def test_windows_by_event_time_are_not_reopened_by_late_rows():
    clock = WindowClock(Window(event_time=3600))
    hour = 3600.0
    times = [9.5 * hour, 9.9 * hour, 10.1 * hour, 9.7 * hour, 10.2 * hour, float("nan"), 13 * hour, 12.9 * hour]
    assert [clock.closed(1, 0.0, time) for time in times] == [False, False, True, False, False, False, True, False]
    restored = WindowClock(Window(event_time=3600))
    restored.load_state_dict(clock.state_dict(0.0), 0.0)
    assert [restored.closed(1, 0.0, time) for time in (13.9 * hour, 14 * hour)] == [False, True]
    with pytest.raises(DataError, match="event time"):
        WindowClock(Window(event_time=3600)).closed(1, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of rows, seconds, event_time; received none"),
        ({"rows": 5, "seconds": 2}, "received rows=5, seconds=2"),
        ({"rows": 0}, r"rows=.*whole number >= 1; received 0"),
        ({"rows": 2.5}, "whole number >= 1; received 2.5"),
        ({"seconds": "60"}, "a number > 0; received '60'"),
        ({"event_time": True}, "a number > 0; received True"),
        ({"rows": 5, "decay": 1.0}, r"decay takes a number in \(0, 1\)"),
        (
            {"rows": 5, "negative_sampling_rate": 0},
            r"sampling_rate takes a number in \(0, 1\] or None; received 0",
        ),
    ],
)
def test_a_window_that_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Window(**options)

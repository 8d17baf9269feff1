"""Positions survive JSON, and those of several processes become one that each can take its part of."""

import json

import pytest

from trainer.data.position import Position
from trainer.errors import ConfigurationError


@pytest.mark.parametrize(
    "position",
    [
        Position(),
        Position(3, 2),
        Position(0, 6, micro_batches=2),
        Position(0, 9, state={"clicks:0": [5, 0]}),
        Position(0, 9, state={"clicks:0": [5, 0], "clicks:1": [7, 2]}, dealt=(("clicks:0",), ("clicks:1",))),
    ],
)
def test_json_gives_the_same_position_back(position):
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


@pytest.mark.parametrize("value", [{"epoch": -1}, {"batch": 1.5}, {"fill": "2"}])
def test_a_count_that_is_none_is_refused(value):
    with pytest.raises(ConfigurationError, match="position"):
        Position.from_json(value)


def test_merged_positions_give_each_process_its_own_partitions():
    own = Position(0, 4, micro_batches=1, state={"a": [1, 0]})
    states = [{"a": [1, 0], "@start": "x"}, {"b": [2, 0]}]
    merged = own.merge(states, lambda parts: {name: value for part in parts for name, value in part.items()})
    assert merged.state == {"a": [1, 0], "@start": "x", "b": [2, 0]}
    assert [merged.part(rank).state for rank in (0, 1)] == [{"a": [1, 0]}, {"b": [2, 0]}]
    assert (merged.batch, merged.micro_batches) == (4, 1)

"""Case (d) measures what it says: every source gives every row, in order, in every window, and a loss is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

import trainer  # noqa: E402
from benchmarks import servers  # noqa: E402
from benchmarks.cases import online  # noqa: E402
from trainer import Trainer  # noqa: E402

pytestmark = [pytest.mark.server, pytest.mark.long]

BATCHES = 8
SECONDS = 30.0


@pytest.fixture(scope="module")
def shared():
    """A function that makes a trainer once and returns it every time: its programs are compiled once."""
    made = []

    def build(*arguments):
        made.extend([] if made else [Trainer(*arguments)])
        return made[0]

    return build


@pytest.fixture
def make(shared, monkeypatch):
    """A function that makes a contender, or skips where its server cannot be had."""
    made = []
    monkeypatch.setattr(trainer, "Trainer", shared)
    monkeypatch.setattr(online, "WARM_UP", online.PER_CALL)

    def build(name, batches=BATCHES):
        kind = name.split(",")[0].lower()
        if kind in ("redis", "kafka") and servers.missing(kind):
            pytest.skip(servers.missing(kind))
        made.append(online.make(name, {"batches": batches}))
        return made[-1]

    yield build
    for contender in made:
        contender.close()


@pytest.mark.parametrize("name", [online.MEMORY, *online.FILES, *online.SERVED])
def test_a_window_trains_on_every_row_of_the_source(make, name):
    batches = 24 if name == "Kafka, JSON" else BATCHES  # more than one partition of librdkafka's cluster keeps
    contender = make(name, batches)
    stream = contender.stream()
    x, label = [], []
    while sum(map(len, x)) < contender.rows and (batch := stream.poll(10_000, SECONDS)):
        x.append(batch.columns["x"])
        label.append(batch.columns["label"])
    stream.close()
    np.testing.assert_array_equal(np.concatenate(x), contender.x)
    np.testing.assert_array_equal(np.concatenate(label), contender.label)
    before = contender.trainer.state.progress.samples_seen
    for _ in range(2):
        window = contender.window()
        assert (window["rows"], window["steps"]) == (batches * online.BATCH, batches)
    assert contender.trainer.state.progress.samples_seen - before == 2 * contender.rows


def test_a_source_that_lost_rows_gives_an_error_and_no_figure(make, monkeypatch):
    # What fits into one partition is kept; the rest is dropped before anyone reads it.
    monkeypatch.setattr(servers, "spread", lambda payloads, quota: [payloads])
    monkeypatch.setattr(online, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(online, "WARM_UP", 1)
    contender = make("Kafka, JSON", 24)  # more than one partition of librdkafka's cluster keeps
    with pytest.raises(RuntimeError, match=rf"trains on {contender.rows} rows; it read \d+ good ones, set 0 aside"):
        contender.window()


def test_messages_are_dealt_out_in_turns_to_as_few_partitions_as_hold_them():
    payloads = [bytes([number]) * 10 for number in range(9)]
    assert servers.spread(payloads, 2, limit=1000) == [payloads]
    turns = [payloads[0:2], payloads[2:4], payloads[4:6], payloads[6:8], payloads[8:]]
    assert servers.spread(payloads, 2, limit=60) == [turns[0] + turns[2] + turns[4], turns[1] + turns[3]]
    assert servers.spread(payloads, 2, limit=20) == turns
    with pytest.raises(ValueError, match="at most 19 bytes; received 20"):
        servers.spread(payloads, 2, limit=19)


def test_a_cluster_that_would_drop_messages_is_not_started():
    payloads = [bytes(1 << 19)] * 12
    with servers.kafka(payloads, partitions=2) as address:
        assert address
    with (
        pytest.raises(ValueError, match=r"a partition keeps 4194304 bytes; received 6291456: take fewer rows"),
        servers.kafka(payloads),
    ):
        pass

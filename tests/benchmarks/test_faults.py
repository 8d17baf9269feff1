"""The fault injection in its short form, and proof that it can fail."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import fault_sources, faults  # noqa: E402
from benchmarks.fault_calls import Faults, Plan  # noqa: E402
from trainer.checkpoint.folder_lock import claim  # noqa: E402
from trainer.errors import ConfigurationError  # noqa: E402
from trainer.streams import DeadLetter  # noqa: E402
from trainer.streams.base import BufferedStream  # noqa: E402


def options(**given):
    return argparse.Namespace(
        **{"every": 1, "most": 0, "pairs": 0, "seconds": 0.0, "seed": 1, "publish": False, **given}
    )


def failures(tallies):
    return [failure for tally in tallies.values() for failure in tally.failures]


@pytest.mark.long(but=["jsonl", "kafka-group"])
@pytest.mark.parametrize("name", [name for name in fault_sources.NAMES if name not in fault_sources.FINITE])
def test_a_call_that_fails_while_reading_loses_no_row_and_repeats_none(name, tmp_path):
    tallies = faults.read_source(name, tmp_path, options(seconds=1.5, pairs=3))
    assert not failures(tallies)
    assert sum(tally.cases for tally in tallies.values()) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["fit", "jsonl", "served"])
def test_a_call_that_fails_while_training_loses_no_row_and_repeats_none(name, tmp_path):
    tallies = faults.run_source(name, tmp_path, options(seconds=3.0, pairs=5))
    assert not failures(tallies)
    assert sum(tally.cases for tally in tallies.values()) > 0


@pytest.fixture(scope="module")
def small_bench(tmp_path_factory):
    """Everything needed to train on JSON lines with failures."""
    bench = faults.Bench(tmp_path_factory.mktemp("bench"))
    with bench.log.listening(), bench.faults.active():
        bench.warm_up(fault_sources.PLAIN["jsonl"])
        yield bench


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("jsonl", Plan("close", 1, "EIO")),  # a reader that cannot be closed
        ("csv", Plan("write", 0, "ENOSPC", lasting=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind} {value.number}",
)
@pytest.mark.parametrize("same_stream", [True, False])
def test_faults_that_were_found_stay_mended(name, plan, same_stream, tmp_path):
    reading = faults.Reading(tmp_path)
    with reading.faults.active(), reading.log.listening():
        outcome = reading.run(fault_sources.PLAIN[name], plan, same_stream)
    assert reading.faults.fired
    assert (outcome.lost, outcome.repeated, outcome.altered) == (0, 0, "")


@pytest.mark.parametrize("number", range(10, 16))
def test_rows_left_over_by_a_small_batch_of_an_idle_stream_are_trained_on(number, small_bench, monkeypatch):
    """A folder that cannot be opened any more leaves a stream idle, and then the same stream goes on."""
    monkeypatch.setattr(faults, "IDLE", 0.7)
    source = fault_sources.PLAIN["jsonl"]
    outcome, _ = small_bench.run(source, Plan("open", number, "EIO", lasting=True), True)
    assert small_bench.faults.fired
    assert (outcome.lost, outcome.repeated, outcome.stuck, outcome.silent) == (0, 0, "", False)


def test_a_lock_whose_record_cannot_be_written_does_not_keep_the_next_writer_out(tmp_path):
    injected = Faults(tmp_path)
    with injected.active(), injected.arm(Plan("write", 1, "ENOSPC")):
        with pytest.raises(ConfigurationError, match="No space left"):
            claim(tmp_path / "snapshots", "checkpoint folder")
        claim(tmp_path / "snapshots", "checkpoint folder").release()


@pytest.mark.parametrize(
    ("owner", "method", "replacement"),
    [(DeadLetter, "record", lambda *given: None), (BufferedStream, "_go_back", lambda stream: None)],
    ids=["bad rows thrown away", "a failed poll that moves on"],
)
def test_what_is_lost_is_a_failure(owner, method, replacement, tmp_path, monkeypatch):
    reading = faults.Reading(tmp_path)
    monkeypatch.setattr(owner, method, replacement)
    if method == "_go_back":  # written too late to be read again
        monkeypatch.setattr(DeadLetter, "count", lambda *given: reading.faults.check("write"))
    with reading.faults.active(), reading.log.listening():
        outcome = reading.run(fault_sources.PLAIN["jsonl"], Plan("write", 1, "ENOSPC"), True)
    assert outcome.lost or outcome.altered
    tally = faults.Tally()
    tally.add("jsonl", outcome)
    assert tally.failures

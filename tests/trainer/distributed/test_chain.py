"""Trainings on arrays and on a Kafka topic, with tables and dropout, go on with 1, 2, 3 processes and 1."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.distributed import chain_program, jobs
from trainer import checkpoint

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.server]


@pytest.fixture(scope="module")
def cluster():
    path = Path(__file__).parents[1] / "streams" / "brokers.py"
    spec = importlib.util.spec_from_file_location("stream_test_brokers", path)
    brokers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(brokers)
    if brokers.MockKafka.library() is None:
        yield None
        return
    cluster = brokers.MockKafka(chain_program.TOPIC, chain_program.PARTITIONS)
    for partition in range(chain_program.PARTITIONS):
        cluster.produce([json.dumps(row) for row in chain_program.messages(partition)], partition)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cluster):
    """The folder of both trainings, and the trainer that has ended the one on arrays."""
    folder = tmp_path_factory.mktemp("chain")
    program, servers = Path(chain_program.__file__), [] if cluster is None else [cluster.servers]
    chain_program.main(folder, 4, 6, *servers)
    for processes, *steps in ((2, 8, 12), (3, 12, 18)):
        jobs.run_program(program, folder, *steps, *servers, processes=processes)
    return folder, chain_program.main(folder, 10_000, 10_000, *servers)


@pytest.fixture
def folder(trained, cluster):
    """The folder of the training on the topic."""
    if cluster is None:
        pytest.skip("confluent-kafka with its own librdkafka is not installed")
    return trained[0] / "stream"


def rows_of(folder):
    return {path.name: np.fromfile(path, np.int64) for path in folder.glob("rows_*")}


def test_a_fit_on_another_number_of_processes_loses_no_row_and_repeats_none(trained):
    folder, trainer = trained
    rows = rows_of(folder / "fit")
    assert {name: len(found) for name, found in rows.items() if name[5] != "1"} == {
        **{f"rows_2_{rank}": 32 for rank in range(2)},
        **{f"rows_3_{rank}": 32 for rank in range(3)},
    }
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(chain_program.FIT_ROWS))
    assert trainer.state.progress.samples_seen == chain_program.FIT_ROWS
    assert trainer.state.progress.epoch == 1


def test_no_row_of_the_stream_is_lost_or_repeated(folder):
    rows = rows_of(folder)
    # a partition has no rows: whoever gets it takes part in every step all the same
    assert rows.keys() == {"rows_1_0", "rows_2_0", "rows_2_1", "rows_3_0", "rows_3_1"}
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(chain_program.ROWS))
    snapshot = checkpoint.find(folder / "snapshots")
    assert snapshot.state["progress"]["samples_seen"] == chain_program.ROWS


@pytest.mark.parametrize("processes", [2, 3])
def test_all_processes_end_with_the_same_bits(folder, processes):
    first, *others = [dict(np.load(folder / f"found_{processes}_{rank}.npz")) for rank in range(processes)]
    tables = {name: first.pop(name) for name in [*first] if name.startswith("tables/")}
    assert any(len(array) > 10 for array in tables.values()), "rank 0 has put them together"
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_windows_go_on_over_all_processes(folder):
    last = dict(np.load(folder / "found_1_0.npz"))
    assert last["window/lifetime_rows"] == chain_program.ROWS
    assert 0 < last["window/lifetime_auc"] < 1

"""One training on a Kafka topic, with tables and dropout, goes on with 1, 2, 4 processes and 1."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.distributed import jobs, stream_chain_program
from trainer import checkpoint


@pytest.fixture(scope="module")
def cluster():
    path = Path(__file__).parents[1] / "streams" / "brokers.py"
    spec = importlib.util.spec_from_file_location("stream_test_brokers", path)
    brokers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(brokers)
    if brokers.MockKafka.library() is None:
        pytest.skip("confluent-kafka with its own librdkafka is not installed")
    cluster = brokers.MockKafka(stream_chain_program.TOPIC, stream_chain_program.PARTITIONS)
    for partition in range(stream_chain_program.PARTITIONS):
        cluster.produce([json.dumps(row) for row in stream_chain_program.messages(partition)], partition)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cluster):
    folder = tmp_path_factory.mktemp("chain")
    program = Path(stream_chain_program.__file__)
    stream_chain_program.main(folder, cluster.servers, 6)
    for processes, max_steps in ((2, 12), (4, 18)):
        code, output = jobs.run("python", program, folder, cluster.servers, max_steps, processes=processes)
        assert code == 0, output
    stream_chain_program.main(folder, cluster.servers, 10_000)
    return folder


def test_no_row_is_lost_or_repeated(folder):
    rows = {path.name: np.fromfile(path, np.int64) for path in folder.glob("rows_*")}
    # a partition has no rows: whoever gets it takes part in every step all the same
    assert rows.keys() == {"rows_1_0", "rows_2_0", "rows_2_1", "rows_4_0", "rows_4_1", "rows_4_2"}
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(stream_chain_program.ROWS))
    snapshot = checkpoint.find(folder / "snapshots")
    assert snapshot.state["progress"]["samples_seen"] == stream_chain_program.ROWS


@pytest.mark.parametrize("processes", [2, 4])
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
    assert last["window/lifetime_rows"] == stream_chain_program.ROWS
    assert 0 < last["window/lifetime_auc"] < 1

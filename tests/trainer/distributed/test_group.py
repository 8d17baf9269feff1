"""Collectives on NumPy arrays between two real processes, and their absence in one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.distributed import jobs
from trainer.distributed.group import join

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    jobs.run_program(Path(__file__).with_name("group_program.py"), folder)
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(2)]


def test_every_process_knows_its_rank(found):
    assert [(one["rank"], one["size"]) for one in found] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32", "float16", "int8", "uint16", "bool_"])
def test_arrays_of_any_dtype_arrive_as_they_were_in_the_order_of_ranks(found, dtype):
    kind = getattr(np, dtype)
    arrays = [(np.arange(5) + 10 * rank).astype(kind).tolist() for rank in range(2)]
    if dtype == "bool_":
        arrays = [(np.arange(5) % 2 == rank).tolist() for rank in range(2)]
    for one in found:
        assert one[dtype] == [True, arrays, True, arrays[0]]


def test_messages_of_unequal_length_arrive_whole(found):
    for one in found:
        assert one["bytes"] == [0, 1000]
        assert one["json"] == [{"of": 0}, {"of": 1}]
        assert one["rows"] == [[[0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]]]


def test_sums_are_exact_in_float64_and_flags_are_agreed_on(found):
    for one in found:
        assert one["total"] == 0.1 + 0.7
        assert one["any"] == [True, False]


def test_parameters_that_differ_are_named(found):
    for one in found:
        assert "1 of 2 differ between rank 0 and rank 1, the first is 'b'" in one["differing"]


def test_one_process_is_a_group_of_its_own():
    group = join()
    assert (group.rank, group.size) == (0, 1)
    assert group.gather(np.arange(3)).tolist() == [[0, 1, 2]]
    assert group.gather_bytes(b"abc") == [b"abc"]
    assert group.total(np.array([1.5])).tolist() == [1.5]


def test_one_process_imports_no_mindspore_for_it():
    program = "import sys; from trainer.distributed.group import join; join(); sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

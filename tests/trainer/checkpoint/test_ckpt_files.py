"""Plain .ckpt files, and the comparison of parameters expected and found."""

import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from trainer.checkpoint.ckpt_files import compare, load_ckpt
from trainer.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointNotFoundError


@pytest.fixture(scope="module")
def network():
    return nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4))


def test_what_mindspore_saved_is_read(tmp_path, network):
    path = tmp_path / "net.ckpt"
    ms.save_checkpoint(network, str(path))
    found = load_ckpt(path)
    expected = {name: parameter.asnumpy() for name, parameter in network.parameters_dict().items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_what_cannot_be_read_says_why(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint file"):
        load_ckpt(tmp_path / "x.ckpt")
    path = tmp_path / "w.ckpt"
    ms.save_checkpoint([{"name": "w", "data": ms.Tensor(np.ones(30))}], str(path))
    os.truncate(path, 40)
    with pytest.raises(CheckpointDamagedError, match=r"w\.ckpt cannot be parsed"):
        load_ckpt(path)
    (tmp_path / "model.pth").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"named \*\.ckpt"):
        load_ckpt(tmp_path / "model.pth")


class TestCompare:
    def test_nothing_differs(self, network):
        parameters = network.parameters_dict()
        found = {name: parameter.asnumpy() for name, parameter in parameters.items()}
        difference = compare(parameters, found)
        assert not difference
        assert difference.matching == tuple(parameters)

    def test_every_kind_of_difference_is_named(self):
        expected = {
            "dense.weight": ((3, 4), ms.float32),
            "dense.bias": ((4,), ms.float32),
            "head.weight": ((2, 4), np.float32),
            "scale": ((), "float32"),
        }
        found = {
            "dense.weight": np.zeros((3, 5), np.float32),
            "dense.bias": np.zeros(4, np.float16),
            "heads.weight": np.zeros((2, 4), np.float32),
            "scale": np.float32(1),
        }
        difference = compare(expected, found)
        assert difference.missing == ("head.weight",)
        assert difference.unexpected == ("heads.weight",)
        assert difference.renamed == {"head.weight": "heads.weight"}
        assert difference.reshaped == {"dense.weight": ((3, 4), (3, 5))}
        assert difference.retyped == {"dense.bias": ("float32", "float16")}
        assert difference.matching == ("scale",)
        error = difference.error("step_00000010", "the network")
        assert isinstance(error, CheckpointMismatchError)
        assert str(error).splitlines() == [
            "step_00000010 does not fit the network: 1 parameters agree",
            "  missing in step_00000010 (1): head.weight (renamed from heads.weight?)",
            "  unexpected in step_00000010 (1): heads.weight",
            "  differently shaped (1): dense.weight (the network has (3, 4), step_00000010 (3, 5))",
            "  of another dtype (1): dense.bias (the network has float32, step_00000010 float16)",
            "  strict=False loads those that agree",
        ]

    def test_long_lists_are_cut(self):
        difference = compare({f"p{index}": ((index,), np.float32) for index in range(25)}, {})
        assert "(25): p0, p1," in difference.message()
        assert "p9 and 15 more" in difference.message()

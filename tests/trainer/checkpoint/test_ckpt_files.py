"""Plain .ckpt files in and out, and the comparison of parameters expected and found."""

import os
import subprocess

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from trainer.checkpoint.ckpt_files import compare, load_ckpt, save_ckpt
from trainer.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointNotFoundError


@pytest.fixture(scope="module")
def network():
    return nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4))


def test_a_network_goes_out_and_comes_back(tmp_path, network):
    path = save_ckpt(network, tmp_path / "new" / "net")
    assert path == tmp_path / "new" / "net.ckpt"
    found = load_ckpt(path)
    expected = {name: parameter.asnumpy() for name, parameter in network.parameters_dict().items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert ms.load_checkpoint(str(path)).keys() == expected.keys(), "MindSpore reads it"
    assert os.listdir(tmp_path / "new") == ["net.ckpt"]


def test_arrays_tensors_and_parameters_are_accepted(tmp_path, network):
    path = save_ckpt({"a": np.arange(3.0), "b": ms.Tensor(2, ms.int32), "c": np.float16(0.5)}, tmp_path / "x.ckpt")
    found = load_ckpt(path)
    assert {name: (array.dtype.name, array.tolist()) for name, array in found.items()} == {
        "a": ("float64", [0, 1, 2]),
        "b": ("int32", 2),
        "c": ("float16", 0.5),
    }
    assert set(load_ckpt(save_ckpt(network.trainable_params(), tmp_path / "x"))) == {
        parameter.name for parameter in network.trainable_params()
    }
    with pytest.raises(CheckpointError, match="received dict with 'a': str"):
        save_ckpt({"a": "text"}, path)
    with pytest.raises(CheckpointError, match="received int"):
        save_ckpt(3, path)


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = save_ckpt({"w": np.zeros(3)}, tmp_path / "w.ckpt")
    save = ms.save_checkpoint

    def interrupted(*given):
        save(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(ms, "save_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_ckpt({"w": np.ones(3)}, path)
    assert load_ckpt(path)["w"].sum() == 0
    assert os.listdir(tmp_path) == ["w.ckpt"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        path = save_ckpt({"w": np.zeros(3)}, disk / "w.ckpt")
        with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*w\.ckpt"):
            save_ckpt({"w": np.ones(100_000)}, path)
        assert os.listdir(disk) == ["w.ckpt"]
        assert load_ckpt(path)["w"].sum() == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_cannot_be_read_says_why(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint file"):
        load_ckpt(tmp_path / "x.ckpt")
    path = save_ckpt({"w": np.ones(30)}, tmp_path / "w.ckpt")
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

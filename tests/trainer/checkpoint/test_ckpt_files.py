"""Plain .ckpt files, and the comparison of parameters expected and found."""

import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train.checkpoint_pb2 import Checkpoint

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


def forged(path, *parameters):
    """Write a file of (name, sizes, type, bytes) that says what it likes."""
    content = Checkpoint()
    for name, sizes, kind, values in parameters:
        part = content.value.add(tag=name)
        part.tensor.dims.extend(sizes)
        part.tensor.tensor_type, part.tensor.tensor_content = kind, values
    path.write_bytes(content.SerializeToString())
    return path


FOUR = np.arange(4, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([("w", [1, 4], "Float32", FOUR[:-1])], r"'w' holds 15 bytes, which is not a Float32 of shape \[1, 4\]"),
        ([("w", [1, 4], "Float32", 1000 * FOUR)], "'w' holds 16,000 bytes"),
        ([("w", [1 << 62, 4], "Float32", FOUR)], "is not a Float32 of shape"),
        ([("w", [-1, -4], "Float32", FOUR)], r"of shape \[-1, -4\]"),
        ([("w", [1] * 200, "Float32", FOUR[:4])], "holds 4 bytes"),
        ([("w", [4], "Flaot32", FOUR)], "unknown type 'Flaot32'; .* did you mean 'Float32'"),
        ([("w", [4], "Float32", FOUR), ("w", [4], "Float32", FOUR)], "'w' holds 32 bytes"),
        (
            [("w", [4], "Float32", FOUR), ("b", [4], "Float32", FOUR), ("w", [4], "Float32", FOUR)],
            "two parameters named",
        ),
        ([], "holds no parameter"),
    ],
    ids=["short", "long", "huge", "negative", "dimensions", "type", "twice", "apart", "empty"],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, parameters, message):
    with pytest.raises(CheckpointDamagedError, match=message):
        load_ckpt(forged(tmp_path / "net.ckpt", *parameters))


def test_slices_are_put_together_and_names_are_only_names(tmp_path):
    name = "../../x\x00/y"
    path = forged(tmp_path / "net.ckpt", (name, [2, 2], "Float32", FOUR[:8]), (name, [2, 2], "Float32", FOUR[8:]))
    np.testing.assert_array_equal(load_ckpt(path)[name], np.arange(4.0).reshape(2, 2))
    assert os.listdir(tmp_path) == ["net.ckpt"]


def test_every_type_and_appended_values_are_read_and_a_checksum_is_checked(tmp_path):
    path, values = str(tmp_path / "net.ckpt"), np.array([[0, 1], [2, 3]])
    kinds = ("int8", "uint16", "int64", "float16", "float64", "bfloat16", "bool")
    given = [{"name": kind, "data": ms.Tensor(values, getattr(ms, kind.replace("bool", "bool_")))} for kind in kinds]
    ms.save_checkpoint(given, path, append_dict={"note": "text", "epoch": 3}, crc_check=True)
    arrays = load_ckpt(path)
    assert {name: str(array.dtype) for name, array in arrays.items()} == {kind: kind for kind in (*kinds, "epoch")} | {
        "epoch": "int64"
    }
    assert arrays["epoch"] == 3
    np.testing.assert_array_equal(arrays["bfloat16"].astype(np.float32), values)
    content = bytearray((tmp_path / "net.ckpt").read_bytes())
    content[20] ^= 1
    (tmp_path / "net.ckpt").write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match="checksum is wrong"):
        load_ckpt(path)


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
            "  strict=False loads all parameters with equal names and shapes",
        ]

    def test_long_lists_are_cut(self):
        difference = compare({f"p{index}": ((index,), np.float32) for index in range(25)}, {})
        assert "(25): p0, p1," in difference.message()
        assert "p9 and 15 more" in difference.message()

"""Large files of rows are verified once, read in blocks, and verified again as they are read."""

import os
import shutil

import numpy as np
import pytest

from trainer import checkpoint
from trainer.checkpoint import block_arrays, snapshot, tensor_file
from trainer.checkpoint.block_arrays import VerifiedFile
from trainer.checkpoint.durable import write_file
from trainer.errors import CheckpointDamagedError

GROUP = "part.tables"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE_FILE", 1)
    monkeypatch.setattr(block_arrays, "CHECKED_BYTES", 1000)
    monkeypatch.setattr(block_arrays, "BLOCK_BYTES", 700)


def rows():
    values = np.arange(900, dtype=np.float32).reshape(300, 3)
    return {"t/values": values, "t/ids": np.arange(300) * 7, "t/removed": np.zeros(0, np.int64), "t/at": np.array(5)}


def stored(folder):
    """Return the arrays of a snapshot, read in blocks, and the file that they are in."""
    path = checkpoint.write(folder, 4, {GROUP: rows()}, {"parts": {}})
    found = checkpoint.find(folder)
    return found.tensors(GROUP), path / f"{GROUP}.safetensors"


def test_arrays_that_are_read_in_blocks_are_those_that_were_written(tmp_path):
    arrays, _ = stored(tmp_path)
    expected = rows()
    assert isinstance(arrays["t/values"], block_arrays.BlockArray)
    for name, array in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(np.asarray(arrays[name]), array)
    chosen = np.array([0, 1, 50, 51, 299])
    np.testing.assert_array_equal(arrays["t/values"].take(chosen), expected["t/values"][chosen])
    part = block_arrays.taken(arrays["t/values"], chosen)
    np.testing.assert_array_equal(part.read(1, 4), expected["t/values"][chosen[1:4]])
    together = block_arrays.JoinedArray([arrays["t/ids"], expected["t/ids"][:9], arrays["t/ids"]])
    np.testing.assert_array_equal(
        together.read(298, 311), np.concatenate([expected["t/ids"]] * 3)[[298, 299, *range(9), 0, 1]]
    )
    blocks = list(block_arrays.blocks(expected, "t/ids", "t/values"))
    assert [first for first, *_ in blocks] == list(range(0, 300, 58))
    np.testing.assert_array_equal(np.concatenate([values for *_, values in blocks]), expected["t/values"])


def test_a_file_that_is_altered_after_it_was_verified_is_not_used(tmp_path):
    arrays, path = stored(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match="was altered while it was read"):
        np.asarray(arrays["t/values"])
    path.write_bytes(content[:-50])
    with pytest.raises(CheckpointDamagedError, match="was cut off while it was read"):
        np.asarray(arrays["t/values"])


def test_a_damaged_file_is_refused_before_anything_is_read(tmp_path):
    _, path = stored(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match="does not match its checksum"):
        checkpoint.read(path.parent)


def test_a_snapshot_that_is_removed_while_it_is_loaded_can_still_be_read(tmp_path):
    arrays, path = stored(tmp_path)
    shutil.rmtree(path.parent)
    np.testing.assert_array_equal(np.asarray(arrays["t/values"]), rows()["t/values"])


def test_files_are_closed_with_their_arrays(tmp_path):
    path = tmp_path / "file"
    arrays = tensor_file.parse_file(VerifiedFile(path, *write_file(path, tensor_file.blocks(rows()))))
    opened = os.listdir("/proc/self/fd")
    del arrays
    assert len(os.listdir("/proc/self/fd")) == len(opened) - 1

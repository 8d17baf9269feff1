"""A folder of Parquet files as finite data: every row once an epoch, in a repeatable order, never all in memory."""

import time

import numpy as np
import pyarrow as pa
import pytest
from mindspore import nn
from pyarrow import parquet

from trainer import ParquetFolder, Trainer
from trainer.data.finite import block_source
from trainer.data.finite.shards import DividedSource
from trainer.data.user_data import UserData
from trainer.distributed.agreement import StopHooks
from trainer.distributed.group import Group
from trainer.errors import ConfigurationError, DataError

ROWS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet")
    for part in range(4):
        numbers = np.arange(part * 250, part * 250 + 250)
        x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 2).astype(np.float32)), 2)
        table = pa.table(
            {"number": numbers, "x": x, "city": pa.array([f"c{n % 5}" for n in numbers]), "label": (numbers % 2) * 1.0}
        )
        parquet.write_table(table, path / f"part-{part}.parquet", row_group_size=30)
    (path / "_SUCCESS").touch()
    return path


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(block_source, "SHUFFLED_ROWS", 100)


def flat(lists):
    return [value for values in lists for value in values]


def numbers(source, epoch=0, start=0):
    return [item.columns[0].tolist() for item in source.batches(epoch, start)]


def test_in_order_the_rows_come_as_they_lie_in_the_files(folder):
    source = ParquetFolder(folder, 64, shuffle=False)
    items = list(source.batches(0, 0))
    assert len(items) == source.size == 16
    number, x, city, label = (np.concatenate(columns) for columns in zip(*[i.columns for i in items], strict=True))
    assert source.names == ("number", "x", "city", "label")
    assert number.tolist() == list(range(ROWS))
    assert (x.shape, x.dtype, label.dtype) == ((ROWS, 2), np.float32, np.float32)
    np.testing.assert_array_equal(x[:, 1], number)
    assert city.tolist() == [f"c{n % 5}" for n in range(ROWS)]


def test_shuffled_each_epoch_has_every_row_once_in_an_order_of_its_own(folder):
    first, again, second = (numbers(ParquetFolder(folder, 64, seed=3), epoch) for epoch in (0, 0, 1))
    assert first == again != second
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [64] * 15 + [40]
        assert sorted(flat(epoch)) == list(range(ROWS))
    assert first != numbers(ParquetFolder(folder, 64, seed=4))


@pytest.mark.parametrize("shuffle", [True, False])
def test_any_position_is_reached(folder, shuffle):
    source = ParquetFolder(folder, 64, shuffle=shuffle)
    whole = numbers(source, 2)
    for start in range(len(whole) + 1):
        assert numbers(source, 2, start) == whole[start:]


def test_what_lies_before_a_position_is_not_read(folder, monkeypatch):
    read = []
    one_group = parquet.ParquetFile.read_row_group

    def noting(self, *args, **options):
        read.append(args)
        return one_group(self, *args, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", noting)
    numbers(ParquetFolder(folder, 50), 0, 18)
    assert 1 <= len(read) <= 8  # two windows of four groups at most; the folder has 36


def test_shards_share_the_rows(folder):
    parts = [flat(numbers(ParquetFolder(folder, 64, num_shards=3, shard_id=shard))) for shard in range(3)]
    assert sorted(flat(parts)) == list(range(ROWS))
    assert [len(part) for part in parts] == [360, 360, 280]  # twelve groups of rows each, of 30 or of 10


def test_a_network_is_trained_and_evaluated_on_it(folder):
    network = nn.SequentialCell(nn.Dense(2, 1), nn.Flatten(0))
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1e-9))
    columns = ["x", "label"]
    valid = ParquetFolder(folder, 500, columns, shuffle=False)
    history = trainer.fit(ParquetFolder(folder, 100, columns), 2, valid, callbacks=[])
    assert trainer.state.progress.samples_seen == 2 * ROWS
    numbers = np.arange(ROWS)
    x, label = np.repeat(numbers, 2).reshape(-1, 2).astype(np.float32), (numbers % 2).astype(np.float32)
    expected = np.mean((trainer.predict(x) - label) ** 2)
    assert history.history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)


def test_mistakes_are_named(folder, tmp_path):
    with pytest.raises(ConfigurationError, match=r"no column 'lable'.*did you mean 'label'"):
        ParquetFolder(folder, 64, ["x", "lable"])
    with pytest.raises(ConfigurationError, match="shard_id takes a whole number from 0 to 1; received 2"):
        ParquetFolder(folder, 64, num_shards=2, shard_id=2)
    with pytest.raises(DataError, match="holds no files"):
        ParquetFolder(tmp_path, 64)
    (tmp_path / "a.parquet").write_bytes(b"not Parquet")
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file"):
        ParquetFolder(tmp_path, 64)
    parquet.write_table(pa.table({"x": [1.0, None, 3.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'x' has 1 missing values"):
        next(ParquetFolder(tmp_path, 2).batches(0, 0))
    parquet.write_table(pa.table({"x": [[1.0], [2.0, 3.0]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="lists of different lengths"):
        next(ParquetFolder(tmp_path, 2).batches(0, 0))


def test_a_damaged_page_is_named_where_pages_have_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": np.arange(100.0)}), path, write_page_checksum=True, compression="none")
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(50).tobytes()) + 6] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0: .*CRC"):
        next(ParquetFolder(tmp_path, 2).batches(0, 0))


def test_a_footer_whose_row_groups_do_not_add_up_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": np.arange(30.0)}), path, row_group_size=10, compression="none")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refused = []
    for place in [
        at for at in range(footer, len(content)) if content[at] == 0x3C
    ]:  # 30 rows, or a list of three structures
        path.write_bytes(content[:place] + b"\x1c" + content[place + 1 :])
        try:
            assert len(next(ParquetFolder(path, 30).batches(0, 0)).columns[0]) == 30
        except DataError as error:
            refused.append(str(error))
    assert any("row groups; their total should be" in text for text in refused), refused


class OneOfTwo(Group):
    """A process of two, whose other one gives the same answers."""

    size = 2

    def __init__(self, rank):
        self.rank = rank

    def gather_json(self, value):
        return [value, value]


def test_each_of_several_processes_takes_its_batches_of_a_whole_folder(folder):
    """To train and to evaluate."""
    hooks = StopHooks(lambda: None, lambda reason: None)
    expected = numbers(ParquetFolder(folder, 50))
    for source_of in (
        lambda data, group: data.train_source(group, hooks, batch_size=None, shuffle=False, seed=0, sharded=None),
        lambda data, group: data.inference_source(group, sharded=None),
    ):
        parts = [numbers(source_of(UserData(ParquetFolder(folder, 50)), OneOfTwo(rank))) for rank in range(2)]
        assert [batch for step in zip(*parts, strict=True) for batch in step] == expected


def test_a_folder_with_num_shards_is_a_part_of_the_rows(folder):
    part = ParquetFolder(folder, 50, num_shards=2, shard_id=1)
    data, hooks = UserData(part), StopHooks(lambda: None, lambda reason: None)
    assert data.inference_source(OneOfTwo(1), sharded=None) is part
    divided = data.train_source(OneOfTwo(1), hooks, batch_size=None, shuffle=True, seed=0, sharded=None)
    assert isinstance(divided, DividedSource)
    assert divided.source is part


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict", "compile"])
def test_a_batch_size_beside_a_folder_that_has_its_own_is_refused_by_name(folder, verb):
    trainer = Trainer(nn.Dense(2, 1), nn.MSELoss(), "sgd")
    with pytest.raises(ConfigurationError, match="batch_size=7 needs arrays; a ParquetFolder is expected to deliver"):
        getattr(trainer, verb)(ParquetFolder(folder, 50), batch_size=7)
    assert trainer.builder.programs == 0


def test_a_folder_reads_the_rows_of_one_shuffle_ahead_and_no_more(folder, monkeypatch):
    source, reads = ParquetFolder(folder, 50), []
    monkeypatch.setattr(source, "read", lambda numbers: reads.append(numbers) or ParquetFolder.read(source, numbers))
    first = source.peek()
    assert len(reads) == 1
    reads.clear()
    batches = source.batches(0, 0)
    np.testing.assert_array_equal(first[0], next(batches).columns[0])
    next(batches)
    until = time.monotonic() + 10
    while len(reads) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(reads) == 2
    assert len(list(batches)) == source.size - 2

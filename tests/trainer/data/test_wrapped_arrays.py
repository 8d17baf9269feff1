"""Pipelines that only cut arrays into batches: read as arrays, batch for batch what the pipeline gives."""

import mindspore.dataset as ds
import numpy as np
import pytest

from trainer.data.finite.sources import PipelineSource
from trainer.data.user_data import UserData
from trainer.mindspore_internals import pipelines

X, Y = np.arange(46, dtype=np.float64).reshape(23, 2), np.arange(23)
READ_AS_ARRAYS = {
    "a tuple": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(5),
    "a dict": lambda: ds.NumpySlicesDataset({"x": X.astype(np.float32), "y": Y}, shuffle=False).batch(5),
    "whole batches": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(5, drop_remainder=True),
    "one array": lambda: ds.NumpySlicesDataset(X, shuffle=False).batch(23),
}
LEFT_ALONE = {
    "shuffled with replacement": lambda: ds.NumpySlicesDataset(
        (X, Y), ["x", "y"], sampler=ds.RandomSampler(replacement=True)
    ).batch(5),
    "shuffled by a buffer": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).shuffle(9).batch(5),
    "a part": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False, num_samples=7).batch(5),
    "a shard": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False, num_shards=2, shard_id=1).batch(5),
    "a sampler": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], sampler=ds.SequentialSampler(3)).batch(5),
    "mapped": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).map(lambda x: x * 2, "x").batch(5),
    "repeated": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).repeat(2).batch(5),
    "mapped batches": lambda: ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(
        5, per_batch_map=lambda x, y, info: (x, y)
    ),
    "lists": lambda: ds.NumpySlicesDataset(([1, 2, 3], [4, 5, 6]), ["x", "y"], shuffle=False).batch(2),
    "text": lambda: ds.NumpySlicesDataset((np.array(["a", "b"]),), ["x"], shuffle=False).batch(2),
}


def read(source):
    found = [[column.copy() for column in item.columns] for item in source.batches(0, 0)]
    source.close()
    return found


@pytest.mark.parametrize("make", READ_AS_ARRAYS.values(), ids=READ_AS_ARRAYS)
def test_the_batches_are_those_of_the_pipeline(make):
    source = UserData(make()).source()
    pipeline = list(make().create_tuple_iterator(num_epochs=1, output_numpy=True))
    found = read(source)
    assert source.in_memory
    assert (source.size, tuple(source.names)) == (make().get_dataset_size(), tuple(make().get_col_names()))
    assert len(found) == len(pipeline)
    for ours, theirs in zip(found, pipeline, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == (np.float32 if other.dtype == np.float64 else other.dtype)


@pytest.mark.parametrize("make", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_whatever_else_a_pipeline_does_it_does_itself(make):
    source = UserData(make()).source()
    assert not source.in_memory
    assert len(read(source)) == make().get_dataset_size()


@pytest.mark.long(but=["False-22-4", "True-23-4"])
@pytest.mark.parametrize(("rows", "epochs"), [(1, 2), (22, 4), (23, 4), (65_536, 1)])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_shuffled_pipeline_is_read_in_its_own_order(rows, epochs, drop_remainder):
    def pipeline():
        return ds.NumpySlicesDataset((np.arange(rows),), ["x"]).batch(-(-rows // 5), drop_remainder=drop_remainder)

    ours, theirs = UserData(pipeline()).source(seed=7), PipelineSource(pipeline(), seed=7)
    assert ours.in_memory
    assert ours.describe() == theirs.describe()
    for epoch in range(epochs):
        for one, other in zip(ours.batches(epoch, 0), theirs.batches(epoch, 0), strict=True):
            np.testing.assert_array_equal(one.columns[0], other.columns[0])
    theirs.close()
    # any position is reached, as after a resume
    again = [item.columns[0] for item in UserData(pipeline()).source(seed=7).batches(epochs - 1, 1)]
    expected = [item.columns[0] for item in ours.batches(epochs - 1, 0)][1:]
    assert len(again) == len(expected)
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_order_of_another_c_plus_plus_library_is_noticed(monkeypatch, caplog):
    monkeypatch.setattr(pipelines, "next_order", lambda order, seed: np.random.default_rng(seed).permutation(order))
    pipelines.shuffles_as_expected.cache_clear()
    try:
        assert not UserData(ds.NumpySlicesDataset((X, Y), ["x", "y"]).batch(5)).source().in_memory
    finally:
        pipelines.shuffles_as_expected.cache_clear()
    assert "pipelines shuffle in a different order" in caplog.text

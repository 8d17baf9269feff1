"""Whatever a user calls a dataset delivers the same rows, again and again, from any position."""

from types import SimpleNamespace

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer import Model, Trainer
from trainer.data.finite.shards import EveryNth
from trainer.data.finite.sources import ArraySource, IterableSource, PipelineSource
from trainer.data.user_data import UserData
from trainer.errors import ConfigurationError, DataError
from trainer.mindspore_internals.pipelines import is_bounded


class ForeignTensor:
    """A tensor of another library: what PyTorch's offers, and nothing NumPy could convert by itself."""

    def __init__(self, array):
        self._array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self._array

    def __array__(self, *args):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


class ForeignLoader:
    """A sized loader of lists of such tensors, as PyTorch's DataLoader is one."""

    def __init__(self, batches):
        self.batches, self.epochs = batches, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.epochs += 1
        for batch in self.batches:
            yield [ForeignTensor(column) for column in batch]


def pipeline(data, shuffle=False, size=100):
    return ms_dataset.NumpySlicesDataset(data, shuffle=shuffle).batch(size)


def read(source, epoch=0, start=0, state=None):
    return [[np.array(column) for column in item.columns] for item in source.batches(epoch, start, state)]


def kinds(cancer, batches):
    """Return {kind: (data, batch_size)}, all the same rows in the same order."""
    x, y = cancer["x"], cancer["y"]
    return {
        "dict of arrays": (cancer, 100),
        "tuple of arrays": ((x, y), 100),
        "tuple of tensors": ((Tensor(x), Tensor(y)), 100),
        "pipeline": (pipeline(cancer), None),
        "list of tuples": (batches(100), None),
        "list of lists of tensors": ([[Tensor(x), Tensor(y)] for x, y in batches(100)], None),
        "list of dicts": ([{"x": x, "y": y} for x, y in batches(100)], None),
        "generator factory": (lambda: iter(batches(100)), None),
        "one-shot generator": (iter(batches(100)), None),
        "another library's loader": (ForeignLoader(batches(100)), None),
        "float64": ({name: column.astype(np.float64) for name, column in cancer.items()}, 100),
    }


KINDS = [
    "dict of arrays",
    "tuple of arrays",
    "tuple of tensors",
    "pipeline",
    "list of tuples",
    "list of lists of tensors",
    "list of dicts",
    "generator factory",
    "one-shot generator",
    "another library's loader",
    "float64",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_batches(kind, cancer, batches):
    data, batch_size = kinds(cancer, batches)[kind]
    source = UserData(data).source(batch_size=batch_size)
    found = read(source)
    assert [len(x) for x, _ in found] == [100, 100, 100, 100, 100, 69]
    for (x, y), (expected_x, expected_y) in zip(found, batches(100), strict=True):
        assert (x.dtype, y.dtype) == (np.float32, np.float32)
        assert (x == expected_x).all()
        assert (y == expected_y).all()
    named = kind in ("dict of arrays", "pipeline", "list of dicts", "float64")
    assert source.names == (("x", "y") if named else ("column_0", "column_1"))
    if kind != "one-shot generator":
        assert [len(x) for x, _ in read(source, epoch=1)] == [100, 100, 100, 100, 100, 69]
    source.close()


@pytest.fixture(scope="module")
def trainer(linear):
    network = linear()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), metrics=["auc"])


@pytest.mark.long(but=["pipeline"])
@pytest.mark.parametrize("kind", ["dict of arrays", "pipeline", "list of dicts", "another library's loader"])
def test_trains_and_evaluates_on_it_again_and_again(kind, trainer, linear, cancer, batches):
    data, batch_size = kinds(cancer, batches)[kind]
    for _ in range(2):
        history = trainer.fit(data, 2, data, callbacks=[], batch_size=batch_size, sink_size=1)
        assert len(history.history["val_auc"]) == 2
        assert trainer.state.progress.samples_seen % 1138 == 0
    assert trainer.evaluate(data, batch_size=batch_size) == trainer.evaluate(data, batch_size=batch_size)


def test_a_pipeline_serves_several_trainers(linear, cancer):
    data = pipeline(cancer, shuffle=True)
    before = set(vars(data))
    weights = []
    for _ in range(2):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), seed=3)
        trainer.fit(data, 2, callbacks=[], sink_size=1)
        weights.append(network[0].weight.asnumpy().tobytes())
    assert weights[0] == weights[1]
    assert set(vars(data)) == before


def test_a_pipeline_without_a_size_is_trained_on_again_by_one_trainer(linear, cancer):
    def rows():
        yield from zip(cancer["x"], cancer["y"], strict=True)

    network = linear()
    trainer = Model(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    trainer.train(3, ms_dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(100), initial_epoch=1)
    trainer.fit(ms_dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(100), 2, callbacks=[])
    assert trainer.state.progress.samples_seen == 4 * 569


class TestArrays:
    def test_shuffled_by_seed_and_epoch_alone(self, cancer):
        def order(seed, epoch, start=0):
            return np.concatenate(
                [x for x, _ in read(UserData(cancer).source(batch_size=100, shuffle=True, seed=seed), epoch, start)]
            )

        assert (order(1, 0) == order(1, 0)).all()
        assert not (order(1, 0) == order(1, 1)).all()
        assert not (order(1, 0) == order(2, 0)).all()
        assert (np.sort(order(1, 5), axis=0) == np.sort(cancer["x"], axis=0)).all()
        assert (order(1, 4)[300:] == order(1, 4, start=3)).all()

    @pytest.mark.parametrize(
        ("data", "batch_size", "error", "message"),
        [
            ({"x": np.ones((4, 2)), "y": np.ones(3)}, 2, DataError, r"different numbers of rows: \{'x': 4, 'y': 3\}"),
            ({"x": np.ones((0, 2)), "y": np.ones(0)}, 2, DataError, "empty: column 'x' has 0 rows"),
            ({"x": np.ones(4), "y": np.float32(1)}, 2, DataError, "column 'y': received a scalar"),
            ({"x": np.ones(4)}, None, ConfigurationError, "arrays are given, so a batch_size is needed"),
            ({"x": np.ones(4)}, 0, ConfigurationError, "whole number >= 1; received 0"),
            ({"x": np.ones(4)}, True, ConfigurationError, "whole number >= 1; received True"),
            (
                [np.ones(4)],
                2,
                ConfigurationError,
                "batch_size=2 needs arrays; a list is expected to deliver .*tuple or dict of",
            ),
            (7, None, DataError, "received int; accepted are a mindspore.dataset pipeline, a dict or tuple"),
            ([], None, DataError, "empty"),
        ],
        ids=["rows", "empty", "scalar", "no size", "0", "True", "batched", "number", "no batches"],
    )
    def test_refused(self, data, batch_size, error, message):
        with pytest.raises(error, match=message):
            UserData(data).source(batch_size=batch_size)


class TestPipeline:
    def test_shuffles_differently_each_epoch_and_repeats_from_any_position(self, cancer):
        source = PipelineSource(pipeline(cancer, shuffle=True), seed=11)
        first, second = read(source, 0), read(source, 1)
        assert not (first[0][0] == second[0][0]).all()
        source.close()
        # a fresh one opened in the middle of epoch 1
        resumed = read(PipelineSource(pipeline(cancer, shuffle=True), seed=11), 1, 2)
        assert [x.tobytes() for x, _ in resumed] == [x.tobytes() for x, _ in second[2:]]

    def test_an_endless_pipeline_is_never_asked_its_size(self, cancer):
        endless = pipeline(cancer).repeat()
        assert not is_bounded(endless)
        assert is_bounded(pipeline(cancer).repeat(3))
        source = PipelineSource(endless)
        assert source.size is None
        taken = source.batches(0, 0)
        assert [len(next(taken).columns[0]) for _ in range(8)] == [100, 100, 100, 100, 100, 69, 100, 100]
        source.close()

    def test_a_generator_without_length_works_too(self, cancer):
        def rows():
            yield from zip(cancer["x"], cancer["y"], strict=True)

        data = ms_dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(100)
        source = PipelineSource(data)
        assert [len(x) for x, _ in read(source)] == [100, 100, 100, 100, 100, 69]
        assert len(read(source, 1)) == 6
        source.close()


class TestIterables:
    def test_a_used_up_generator_says_what_to_pass_instead(self, batches):
        source = IterableSource(batch for batch in batches(100))
        read(source, 0)
        with pytest.raises(DataError, match="epoch 1: the generator is used up after one pass; pass a function"):
            read(source, 1)

    def test_set_epoch_is_called(self, batches):
        class Sampler:
            epochs = ()

            def set_epoch(self, epoch):
                self.epochs += (epoch,)

            def __iter__(self):
                return iter(batches(100))

        sampler = Sampler()
        source = IterableSource(sampler)
        read(source, 0)
        read(source, 1)
        assert sampler.epochs == (0, 1)
        assert source.size is None

    def test_a_position_is_reached_by_reading_with_a_warning(self, batches, caplog):
        found = read(IterableSource(batches(100)), start=4)
        assert [len(x) for x, _ in found] == [100, 69]
        assert "first 4 batches of epoch 0 are read again" in caplog.text

    def test_columns_of_dicts_may_come_in_another_order_but_not_change(self):
        source = IterableSource([{"x": np.ones(2), "y": np.zeros(2)}, {"y": np.zeros(2), "x": np.ones(2)}])
        assert all((x == 1).all() and (y == 0).all() for x, y in read(source))
        with pytest.raises(DataError, match=r"received \['x', 'z'\], expected \['x', 'y'\]"):
            read(IterableSource([{"x": np.ones(2), "y": np.zeros(2)}, {"x": np.ones(2), "z": np.zeros(2)}]))


def test_each_process_says_what_the_shared_source_has_set_aside():
    source = ArraySource({"x": np.zeros((4, 1), np.float32)}, 2)
    shared = EveryNth(source, SimpleNamespace(size=2, rank=0))
    assert shared.set_aside is None
    source.set_aside = "1 of 5 rows"
    assert shared.set_aside == "1 of 5 rows"

"""Features that learn from the stream: new categories, moving means, exact after an interruption, in what is served."""

import itertools

import numpy as np
import pytest
from mindspore import nn, ops, set_seed

from callbacks import LambdaCallback, ModelCheckpoint
from tests.trainer.features.drifting_rows import drifting_rows
from trainer import Every, Trainer
from trainer.errors import ConfigurationError
from trainer.features import Bucketized, Categorical, FeatureEmbedding, Features, ListFeature, Numeric
from trainer.features.statistics import Moments
from trainer.features.stream_rows import BatchTransform
from trainer.serving import Publish, ServedModel
from trainer.streams import IterableStream, ReplayStream

ROWS, BATCH, UPDATE = 1200, 50, 170


ALL = drifting_rows(ROWS, 100)


class Net(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, 2)
        self.top = nn.Dense(2 * len(self.embedding.field_names) + self.embedding.number_width, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        return self.top(ops.concat((fields.reshape(fields.shape[0], -1), numbers), 1)).reshape(-1)


def make_trainer(**options):
    set_seed(0)
    features = Features(
        [
            Numeric("x", normalize="standard", missing="mean"),
            Numeric("z", normalize="min_max"),
            Bucketized("z_bucket", column="z", boundaries=4),
            Categorical("city", vocabulary="learn", min_count=5, max_size=9),
            ListFeature("tags", separator="|", vocabulary="learn", max_length=4),
        ],
        label="y",
        **{"update_every": UPDATE, **options},
    )
    net = Net(features)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer, features=features, seed=0)


def train(trainer, callbacks=(), **options):
    options = {"batch_size": BATCH, **options}
    trainer.online_train(ReplayStream(ALL), callbacks=list(callbacks), **options)
    return trainer


def state_of(trainer):
    state = trainer.features.state_dict()
    return state["json"], {name: array.tobytes() for name, array in state["arrays"].items()}


@pytest.fixture(scope="module")
def undisturbed():
    return train(make_trainer())


def test_statistics_are_those_of_the_rows_before_the_last_update(undisturbed):
    """Updates happen at the first batch behind 170 rows: at 200, 400 ... 1000; the last 200 rows are still waiting."""
    features = undisturbed.features
    assert features.recent.rows == 200
    expected = Moments()
    for start in range(0, 1000, 200):
        expected.add(ALL["x"][start : start + 200])
    moments = features.statistics["x"]
    assert (moments.count, moments.mean, moments.squares) == (expected.count, expected.mean, expected.squares)
    finite = ALL["x"][:1000][np.isfinite(ALL["x"][:1000])]
    assert moments.mean == pytest.approx(finite.mean())
    assert moments.deviation == pytest.approx(finite.std())
    assert features.statistics["z"].maximum == ALL["z"][:1000].max()
    early = {name: column[:200] for name, column in ALL.items()}
    assert set(features.transform(early)["ids"][:, 1]) > {0, 2, 3}


def test_each_batch_is_transformed_by_what_the_rows_before_it_have_taught():
    seen = []
    trainer = make_trainer()
    train(
        trainer,
        [LambdaCallback(on_train_step_end=lambda t: seen.append((t.state.outputs.chunk.rows(0), t.features.learned)))],
        max_steps=9,
    )
    mean, deviation = 0.0, 1.0
    for step, (numbers, learned) in enumerate(seen):
        if step in (4, 8):
            finite = ALL["x"][: step * BATCH][np.isfinite(ALL["x"][: step * BATCH])]
            mean, deviation = finite.mean(), finite.std()
        x = ALL["x"][step * BATCH : (step + 1) * BATCH]
        expected = np.where(np.isfinite(x), (x - mean) / deviation, 0.0)
        np.testing.assert_allclose(numbers[:, 0], expected, rtol=1e-5, atol=1e-6)
        assert learned.statistics["x"].mean == pytest.approx(mean)


@pytest.mark.long(but=["2-8"])
@pytest.mark.parametrize("steps", [6, 8])
@pytest.mark.parametrize("sink_size", [1, 2])
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(undisturbed, tmp_path, steps, sink_size):
    train(make_trainer(), [ModelCheckpoint(tmp_path, every=2)], max_steps=steps, sink_size=sink_size)
    resumed = train(make_trainer(), resume=tmp_path, sink_size=sink_size)
    assert resumed.state.progress.samples_seen == ROWS
    assert state_of(resumed) == state_of(undisturbed)
    np.testing.assert_array_equal(resumed.predict(ALL), undisturbed.predict(ALL))


@pytest.mark.long
def test_a_second_call_goes_on_with_what_the_first_has_learned(undisturbed):
    trainer = make_trainer()
    stream = ReplayStream(ALL)
    for steps in (3, 10, None):
        trainer.online_train(stream, callbacks=[], batch_size=BATCH, max_steps=steps)
    assert state_of(trainer) == state_of(undisturbed)
    np.testing.assert_array_equal(trainer.predict(ALL), undisturbed.predict(ALL))


def test_rows_of_an_update_that_was_not_complete_are_learned_from_once():
    """A further call reads them again."""
    cuts = [0, 30, 50, 80, 100]
    batches = [{name: ALL[name][first:end] for name in ("x", "y")} for first, end in itertools.pairwise(cuts)]
    found = []
    for stops in (False, True):
        features = Features([Numeric("x", normalize="standard", missing="mean")], label="y", update_every=40)
        net = nn.SequentialCell(nn.Dense(1, 1, weight_init="ones", bias_init="zeros"), nn.Flatten(0))
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        trainer = Trainer(net, nn.MSELoss(), optimizer, features=features, gradient_accumulation_steps=2)
        stream = IterableStream(lambda: iter(batches))
        if stops:  # behind the third batch, in the middle of the second update
            stop = LambdaCallback(on_train_step_end=lambda t: t.state.progress.samples_seen > 50 and t.stop())
            trainer.online_train(stream, [stop])
            assert (features.recent.rows, features.statistics["x"].count) == (50, 0)
        trainer.online_train(stream, [])
        found.append((state_of(trainer), net[0].weight.asnumpy().tolist(), trainer.state.progress.samples_seen))
    assert found[0] == found[1]


@pytest.mark.long
def test_each_published_version_holds_what_it_was_trained_with(tmp_path):
    trainer, found = make_trainer(), []
    rows = {name: column for name, column in ALL.items() if name != "y"}
    publish = Publish(tmp_path, every=Every(steps=1), batch=BATCH)

    def serve(trainer):
        publish.wait()
        model.append(ServedModel(tmp_path, follow=False)) if not model else model[0].refresh()
        found.append(model[0].features.statistics["x"].mean)
        assert found[-1] == trainer.features.statistics["x"].mean
        if trainer.state.progress.global_step % 4 == 0:
            np.testing.assert_array_equal(model[0].predict(rows), trainer.predict(rows, batch_size=BATCH))

    model: list[ServedModel] = []
    train(trainer, [publish, LambdaCallback(on_train_step_end=serve)], max_steps=9)
    assert [mean == 0 for mean in found] == [True] * 4 + [False] * 5
    assert len(set(found)) == 3
    begun = make_trainer()
    begun.init_from(tmp_path)
    assert begun.features.statistics["x"].mean == trainer.features.statistics["x"].mean
    model[0].close()


@pytest.mark.long
def test_without_update_every_what_was_learned_stays():
    trainer = make_trainer(update_every=None)
    with pytest.raises(ConfigurationError, match="update_every=10_000"):
        train(trainer)
    trainer.features.fit(drifting_rows(ROWS, 100, seed=1))
    trainer.features.transform(ALL)  # gives ids their rows
    before = state_of(trainer)
    train(trainer, max_steps=6)
    assert state_of(trainer) == before
    with pytest.raises(ConfigurationError, match="update_every"):
        make_trainer(update_every=0)


def test_a_column_that_later_batches_lack_is_missing_in_each_of_their_rows():
    """It ended the training, or not, as the rows happened to be cut into batches."""
    features = Features([Numeric("x"), Categorical("city")], label="y")
    items = [{"x": [1.0, 2.0], "city": ["a", "b"], "y": [0, 1]}, {"x": [1.0], "y": [1]}, {"city": ["a"], "x": [0.0]}]
    stream = IterableStream(items, rows="batch")
    stream.declare(features.schema)
    transform = BatchTransform(features, stream)
    assert [transform(stream.poll(9)).rows for _ in items] == [2, 1, 0]
    assert stream.dead_letter.reasons == {"y is missing": 1}

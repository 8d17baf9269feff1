"""A row that makes a model NaN is left out of training; a model of NaN is neither published nor answered."""

import asyncio
import json
import logging

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import NonFiniteError
from trainer.features import Categorical, FeatureEmbedding, Features, Numeric
from trainer.serving import Publish, ServedModel, Versions, export_model
from trainer.serving.http.service import Service
from trainer.serving.http.service_call import Call, ServeOptions
from trainer.serving.published import known_versions, table_rows
from trainer.streams import ReplayStream

BATCH, STEPS, BAD = 32, 12, 5  # the batch with one row of 3e25, a number whose square overflows


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.taste = Embedding(4, mode="sparse")
        self.normalized = nn.BatchNorm1d(2)
        self.top = nn.Dense(6, 1)

    def construct(self, x, ids):
        return self.top(ops.concat((self.normalized(x), self.taste(ids)), 1))[:, 0]


def stream(bad=BAD, value=3e25):
    rng = np.random.default_rng(0)
    rows = BATCH * STEPS
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    table = {"x": x, "ids": rng.integers(0, 50, rows), "label": (x[:, 0] > 0).astype(np.float32)}
    if bad is not None:
        x[bad * BATCH + 7, 1] = value
    return ReplayStream(table)


def trained(publish, sink_size=1, online=None, **options):
    net = Net()
    loss = nn.BCEWithLogitsLoss()
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 1e-2), metrics={"auc"}, **options)
    trainer.online_train(stream(), [publish], sink_size=sink_size, batch_size=BATCH, window=4 * BATCH, **(online or {}))
    return trainer


def publish_and_wait(publish, trainer, seen):
    publish.publish(trainer, seen)
    publish.wait()


def is_finite(folder):
    """Return whether all parameters, rows and answers of the newest version are finite."""
    with ServedModel(folder, follow=False) as model:
        values = [parameter.asnumpy() for parameter in model.graph.weights.values()]
        values.append(model.predict(x=np.ones((60, 2), np.float32), ids=np.arange(60)))
        return all(np.isfinite(value).all() for value in values)


@pytest.mark.long(but=["1-{}"])
@pytest.mark.parametrize(
    ("sink_size", "options"),
    [(1, {}), (4, {}), (2, {"gradient_accumulation_steps": 2}), (1, {"clip_norm": 1.0})],
    ids=str,
)
def test_a_step_that_would_spoil_the_model_is_left_out_named_and_counted(tmp_path, caplog, sink_size, options):
    publish = Publish(tmp_path, every=0.05)
    with caplog.at_level(logging.WARNING):
        trainer = trained(publish, sink_size, **options)
    assert trainer.state.stop_reason.kind == "stream_end"
    assert trainer.state.skipped_steps == 1
    assert trainer.state.progress.samples_seen == BATCH * STEPS
    weights = [parameter.asnumpy() for parameter in trainer.network.get_parameters()]
    assert all(np.isfinite(weight).all() for weight in weights)
    assert abs(weights[0]).max() < 10
    named = [record.message for record in caplog.records if "skipped step" in record.message]
    step = BAD // options.get("gradient_accumulation_steps", 1) + 1
    assert len(named) == 1
    assert f"skipped step {step}, its data lies between" in named[0]
    assert (publish.refused, publish.problem, is_finite(tmp_path)) == (0, None, True)


def test_a_gradient_whose_square_overflows_is_not_finite():
    """No statistic shows it, loss and gradient are finite: Adam's second moment would be infinite, then NaN."""
    net = nn.Dense(2, 1)
    trainer = Trainer(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 1e-2))
    x = np.ones((80, 2), np.float32)
    x[19, 1] = 3e18
    trainer.online_train(ReplayStream({"x": x, "label": np.ones((80, 1), np.float32)}), [], batch_size=8)
    assert trainer.state.skipped_steps == 1
    assert all(np.isfinite(moment.asnumpy()).all() for moment in trainer.optimizer.get_parameters())


def test_too_many_in_a_row_end_the_run_with_the_reason(tmp_path):
    net = Net()
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2))
    x = np.random.default_rng(0).normal(size=(800, 2)).astype(np.float32) * np.float32(3e25)
    table = {"x": x, "ids": np.arange(800), "label": np.ones(800, np.float32)}
    trainer.online_train(ReplayStream(table), [], batch_size=8)
    assert trainer.state.stop_reason.kind == "non_finite"
    detail = "non-finite steps in a row (max_consecutive=20); none of them changed the weights"
    assert detail in trainer.state.stop_reason.detail
    assert all(np.isfinite(parameter.asnumpy()).all() for parameter in net.get_parameters())


def test_a_model_that_became_nan_is_not_published(tmp_path, caplog):
    """Without the guard the weights become NaN; the version before stays, with one message."""
    publish = Publish(tmp_path, every=1e-3)
    trainer = trained(publish, online={"skip_non_finite": False})
    assert not all(np.isfinite(parameter.asnumpy()).all() for parameter in trainer.network.get_parameters())
    assert publish.refused >= 1
    assert "NaN or infinite" in publish.problem
    told = [record for record in caplog.records if "the version was not published" in record.message]
    assert len(told) == 1, [record.message for record in told]
    assert is_finite(tmp_path)
    some = {"x": np.ones((9, 2), np.float32), "ids": np.arange(9)}
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        export_model(trainer, tmp_path / "exported", data=some, onnx=False)
    assert not (tmp_path / "exported").exists()


class Linear(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, dim=2)
        self.weights = nn.Dense(self.embedding.number_width, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        return self.weights(numbers)[:, 0] + fields.sum((1, 2))


def test_each_part_of_a_version_is_checked(tmp_path):
    """A parameter, a row of a table, its default row, a statistic of features: what `fit` publishes too."""
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(18, 70, 64), "city": rng.choice(list("abc"), 64)}
    table["click"] = (table["age"] > 40).astype(np.float32)
    features = Features([Numeric("age", normalize="standard"), Categorical("city")], label="click", update_every=64)
    net = Linear(features)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features)
    publish = Publish(tmp_path, every=1000)
    trainer.fit(table, batch_size=32, callbacks=[publish])
    versions = known_versions(tmp_path)
    store = next(iter(trainer.tables.tables.tables.values())).store
    moments = features.learned.statistics["age"]

    def refused():
        publish.setup(trainer)
        try:
            with pytest.raises(NonFiniteError) as error:  # by either of them
                publish_and_wait(publish, trainer, trainer.first_batch(table, 32))
            return str(error.value)
        finally:
            publish.teardown(trainer)

    weight = net.weights.weight
    sound = weight.asnumpy().copy()
    weight.set_data(Tensor(sound * np.nan))
    assert "the parameter 'weights.weight'" in refused()
    weight.set_data(Tensor(sound))
    for number in range(2):
        rows = store.read(np.array([number])).copy()
        store.write(np.array([number]), np.full_like(rows, np.inf))
        assert "table 'city':" in refused()
        store.write(np.array([number]), rows)
    mean, moments.mean = moments.mean, float("nan")
    assert "the statistic of features" in refused()
    moments.mean = mean
    assert known_versions(tmp_path) == versions


def test_versions_that_are_not_written_keep_no_rows(tmp_path):
    """A large table would be copied once for each of them, and these copies kept until the end of the process."""
    trainer = trained(Publish(tmp_path, every=1e-3), online={"skip_non_finite": False, "max_steps": BAD + 3})
    publish = Publish(tmp_path, every=1e-3)
    some = trainer.first_batch({"x": np.ones((8, 2), np.float32), "ids": np.arange(8)}, 8)
    publish.setup(trainer)
    table = trainer.tables.tables.tables["taste"]
    for _ in range(2):
        with pytest.raises(NonFiniteError):
            publish_and_wait(publish, trainer, some)
    publish.teardown(trainer)
    table.plan(np.array([[1, 2]]))  # the next batch
    table.rollback()
    assert not table.store.is_frozen


def test_answers_that_are_not_finite_are_errors_and_readiness_says_so(tmp_path):
    """A row beyond float32 among others: it is null and named, they are answered; weights of NaN are not served."""
    trained(Publish(tmp_path, batch=8, every=1e-3), online={"max_steps": 4})
    rows = [{"x": [1.0, 2.0], "ids": 3}, {"x": [3e38, 3e38], "ids": 3}, {"x": [0.0, 1.0], "ids": 4}]
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3e38, 3e38]},
        {"name": "ids", "datatype": "INT64", "shape": [1], "data": [3]},
    ]

    async def ask():
        service = Service(tmp_path, ServeOptions())
        await service.start()
        with service._engine.model.held() as version:  # as a published model of an earlier version may be
            top = version.graph.weights["top.weight"]
            top.set_data(Tensor(top.asnumpy() * 10))
        before = await service.handle(Call("ready"))
        calls = [Call("predict", json.dumps(rows).encode()), Call("infer", json.dumps({"inputs": tensors}).encode())]
        replies = [await service.handle(call) for call in calls]
        after = await service.handle(Call("ready"))
        with service._engine.model.held() as version:  # a version without an answer
            top.set_data(Tensor(np.full(top.shape, np.nan, np.float32)))
        for _ in range(2):
            await service.handle(Call("predict", json.dumps(rows[::2]).encode()))
        spoilt = await service.handle(Call("ready"))
        Versions(tmp_path).pin(service._engine.model.version - 1)
        while service._engine.model.version == version.current.version:
            await asyncio.sleep(0.02)
        replies.append(await service.handle(Call("predict", json.dumps(rows[::2]).encode())))
        good = await service.handle(Call("ready"))
        await service.stop()
        return [(reply.status, json.loads(reply.body)) for reply in (before, *replies, after, spoilt, good)]

    before, (status, answer), infer, again, after, spoilt, good = asyncio.run(ask())
    assert before[1]["problem"] is None
    assert status == 200
    assert [p is None for p in answer["probability"]] == [False, True, False]
    assert [(e["row"], e["status"]) for e in answer["errors"]] == [(1, 422)]
    assert "NaN or infinite" in answer["errors"][0]["reason"]
    assert (infer[0], "NaN or infinite" in infer[1]["error"]) == (422, True)
    assert "2 of 4 answers of version" in after[1]["problem"]
    assert (after[0], after[1]["ready"]) == (200, True)  # a caller's rows make no server unready
    assert "6 of 8 answers of version" in spoilt[1]["problem"]
    assert (spoilt[0], spoilt[1]["ready"]) == (503, False)
    assert None not in again[1]["probability"]
    assert (good[0], good[1]["ready"], good[1]["problem"]) == (200, True, None)


def test_rows_that_are_not_finite_are_not_read():
    rows = {"ids": np.arange(2), "removed": np.zeros(0, np.int64), "default": np.zeros((0, 3), np.float32)}
    sound = {**rows, "weights": np.ones((2, 3), np.float32)}
    assert len(table_rows({f"taste/{key}": sound[key] for key in sound}, {"taste": 3}, "a file")["taste"]["ids"]) == 2
    for wrong in ({"weights": np.full((2, 3), np.nan, np.float32)}, {"default": np.full((1, 3), np.inf, np.float32)}):
        tensors = {f"taste/{key}": array for key, array in (sound | wrong).items()}
        with pytest.raises(NonFiniteError, match=f"a file: table 'taste': '{next(iter(wrong))}' holds"):
            table_rows(tensors, {"taste": 3}, "a file")

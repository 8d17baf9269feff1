"""Several tasks are served by name, each in the unit of its label, however the network returns them."""

import asyncio
import json

import numpy as np
import pytest
from mindspore import nn

from trainer import MultiTaskLoss, Trainer
from trainer.errors import ConfigurationError
from trainer.serving import Publish, ServedModel, export_model
from trainer.serving.http.service import Service
from trainer.serving.http.service_call import Call, ServeOptions

X = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)


class Heads(nn.Cell):
    """Two tasks, as a dict in another order, as a tuple with a further output, or as the columns of a tensor."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.body = nn.Dense(2, 2)

    def construct(self, x):
        scores = self.body(x)
        if self.form == "dict":
            return {"amount": scores[:, 1], "click": scores[:, 0]}
        if self.form == "tuple":
            return scores[:, 0], scores[:, 1], x
        return scores


@pytest.fixture(scope="module", params=["dict", "tuple", "columns"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "versions"
    net = Heads(request.param)
    loss = MultiTaskLoss({"click": nn.BCEWithLogitsLoss(), "amount": nn.MSELoss()})
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 1e-2))
    table = {"x": X, "click": (X[:, 0] > 0).astype(np.float32), "amount": 3 * X[:, 1]}
    trainer.fit(table, batch_size=64, callbacks=[Publish(folder, batch=64)])
    return trainer, folder, request.param


def flat(predictions):
    """The arrays of a prediction by name or position."""
    if isinstance(predictions, np.ndarray):
        return {"all": predictions}
    return predictions if isinstance(predictions, dict) else dict(enumerate(predictions))


@pytest.mark.parametrize("output", ["network", "probability"])
def test_a_served_model_predicts_as_the_trainer_does(trained, output):
    trainer, folder, _ = trained
    expected = flat(trainer.predict(X, output=output, batch_size=64))
    with ServedModel(folder, follow=False) as model:
        served = flat(model.predict(X, output=output))
    assert list(served) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(served[name], values, rtol=1e-6)


def test_requests_are_answered_by_task(trained):
    trainer, folder, form = trained
    scores = trainer.predict(X, batch_size=64)
    click, amount = {
        "dict": lambda: (scores["click"], scores["amount"]),
        "tuple": lambda: scores[:2],
        "columns": lambda: scores.T,
    }[form]()
    chance = 1 / (1 + np.exp(-click.astype(np.float64)))
    body = json.dumps({"columns": {"x": X.tolist()}}).encode()
    tensor = {"name": "x", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()}
    infer = json.dumps({"inputs": [tensor]}).encode()

    async def ask():
        service = Service(folder, ServeOptions(name="m"))
        await service.start()
        calls = [Call("predict", body), Call("predict", body, logits=True), Call("infer", infer, model="m")]
        calls += [Call("predict", b'{"x": "one"}'), Call("model", model="m"), Call("openapi")]
        replies = [json.loads((await service.handle(call)).body) for call in calls]
        await service.stop()
        return replies

    answer, with_logits, inferred, bad, described, openapi = asyncio.run(ask())
    assert list(answer["prediction"]) == ["click", "amount"]
    np.testing.assert_allclose(answer["prediction"]["click"], chance, rtol=1e-5)
    np.testing.assert_allclose(answer["prediction"]["amount"], amount, rtol=1e-5, atol=1e-6)
    assert {"probability", "logits", "output_1"}.isdisjoint(answer)
    assert ("output_2" in answer) == (form == "tuple")
    np.testing.assert_allclose(with_logits["logits"]["click"], click, rtol=1e-5, atol=1e-6)
    tensors = {one["name"]: one["data"] for one in inferred["outputs"]}
    np.testing.assert_allclose(tensors["click"], chance, rtol=1e-5)
    np.testing.assert_allclose(tensors["click_logits"], click, rtol=1e-5, atol=1e-6)
    assert bad["prediction"] == {"click": [None], "amount": [None]}
    assert [one["name"] for one in described["outputs"]] == ["click", "amount", "click_logits", "amount_logits"]
    schema = openapi["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]["prediction"]["properties"]) == ["click", "amount"]


class Echo(nn.Cell):
    def construct(self, x):
        return {"x": 2 * x, "sum": x.sum(1)}


class SumLoss(nn.Cell):
    def construct(self, outputs, label):
        return ((outputs["sum"] - label) ** 2).mean()


def test_an_exported_output_named_like_an_input_has_a_name_of_its_own(tmp_path):
    trainer = Trainer(Echo(), SumLoss())
    exported = export_model(trainer, tmp_path / "exported", {"x": X}, batch=64)
    described = json.loads((exported.folder / "model.json").read_text())["outputs"]
    assert [one["name"] for one in described] == ["output_x", "sum"]
    example = np.load(exported.folder / "example.npz")
    np.testing.assert_allclose(example["output.output_x"], 2 * example["input.x"], rtol=1e-6)


def test_a_function_as_activation_is_not_published_and_that_is_said(tmp_path, caplog):
    net = Heads("tuple")
    loss = MultiTaskLoss({"click": nn.BCEWithLogitsLoss(), "amount": nn.MSELoss()})
    activation = {"amount": lambda amounts: 100 * amounts}
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 1e-2), prediction_activation=activation)
    table = {"x": X, "click": (X[:, 0] > 0).astype(np.float32), "amount": 3 * X[:, 1]}
    trainer.fit(table, batch_size=64, callbacks=[Publish(tmp_path / "versions", batch=64)])
    assert "the function prediction_activation of amount is not published" in caplog.text
    with ServedModel(tmp_path / "versions", follow=False) as model:
        np.testing.assert_array_equal(model.predict(X)[1], trainer.predict(X, batch_size=64)[1])
        with pytest.raises(ConfigurationError, match="is a function, which is not published"):
            model.predict(X, output="probability")

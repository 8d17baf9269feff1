"""The names of a label's classes are in every answer: `ServedModel`, HTTP in each form, exported models, reports."""

import asyncio
import json

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.features import Features, Numeric
from trainer.models import WideDeep
from trainer.serving import Publish, ServedModel, export_model
from trainer.serving.http.service import Service
from trainer.serving.http.service_call import Call, ServeOptions

ROWS = [{"x": x} for x in np.linspace(-3, 3, 7).tolist()]


@pytest.fixture(scope="module", params=[["nein", "ja"], [-1, 1], ["bought", "left", "returned"]], ids=str)
def trained(request, tmp_path_factory):
    """Train until the class follows x; return trainer, folder and class names."""
    classes, folder = request.param, tmp_path_factory.mktemp("named") / "versions"
    x = np.linspace(-3, 3, 512)
    numbers = np.minimum(((x + 3) / 6 * len(classes)).astype(int), len(classes) - 1)
    features = Features([Numeric("x")], label="y", label_classes=classes)
    net = WideDeep(features, dim=1, hidden=[8], classes=len(classes) if len(classes) > 2 else 1)
    loss = nn.BCEWithLogitsLoss() if len(classes) == 2 else nn.CrossEntropyLoss()
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 5e-2), features=features)
    table = {"x": x, "y": np.array(classes)[numbers]}
    trainer.fit(table, epochs=8, batch_size=64, callbacks=[Publish(folder, batch=32)])
    return trainer, folder, classes


def asked(folder, *calls):
    async def ask():
        service = Service(folder, ServeOptions(name="m"))
        await service.start()
        replies = [await service.handle(call) for call in calls]
        await service.stop()
        return replies

    return asyncio.run(ask())


@pytest.mark.long
def test_every_answer_names_the_classes(trained, tmp_path):
    trainer, folder, classes = trained
    with ServedModel(folder, follow=False) as model:
        names, chances = (model.predict(ROWS, output=output) for output in ("class", "probability"))
    chances = chances.reshape(len(ROWS), -1)
    numbers = (chances[:, 0] > 0.5).astype(int) if len(classes) == 2 else chances.argmax(1)
    assert names.tolist() == [classes[number] for number in numbers]
    assert [names[0], names[-1]] == [classes[0], classes[-1]]

    body = json.dumps([*ROWS, {"x": "old"}]).encode()
    tensor = {"name": "x", "shape": [len(ROWS)], "datatype": "FP64", "data": [row["x"] for row in ROWS]}
    infer, path = json.dumps({"inputs": [tensor]}).encode(), {"model": "m"}
    replies = asked(
        folder, Call("predict", body), Call("infer", infer, **path), Call("model", **path),
    )  # fmt: skip
    assert [reply.status for reply in replies] == [200] * 3
    answer, inferred, described = (json.loads(reply.body) for reply in replies)
    assert answer["classes"] == classes
    assert answer["prediction"] == [*names.tolist(), None]
    np.testing.assert_allclose(np.reshape(answer["probability"][:-1], chances.shape), chances, rtol=1e-6)
    outputs = {one["name"]: one for one in inferred["outputs"]}
    assert outputs["prediction"]["data"] == names.tolist()
    assert outputs["prediction"]["datatype"] == ("BYTES" if isinstance(classes[0], str) else "INT64")
    assert inferred["parameters"] == {"classes": classes}
    assert [one["name"] for one in described["outputs"]] == ["prediction", "probability", "logits"]

    with pytest.raises(ConfigurationError, match="some rows that show"):
        export_model(trainer, tmp_path / "none", onnx=False)
    exported = export_model(trainer, tmp_path / "exported", ROWS, onnx=False)
    assert json.loads((exported.folder / "model.json").read_text())["classes"] == classes


def test_a_model_without_class_names_says_so(tmp_path):
    features = Features([Numeric("x")], label="y")
    net = WideDeep(features, dim=1, hidden=[4])
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features)
    trainer.fit({"x": np.arange(64.0), "y": np.arange(64.0) % 2}, batch_size=64, callbacks=[Publish(tmp_path / "v")])
    without = pytest.raises(ConfigurationError, match=r"trained without Features\(label_classes=...\)")
    with ServedModel(tmp_path / "v", follow=False) as model, without:
        model.predict(ROWS, output="class")
    (reply,) = asked(tmp_path / "v", Call("predict", json.dumps(ROWS).encode()))
    assert {"prediction", "classes"}.isdisjoint(json.loads(reply.body))


def test_two_classes_may_be_integers_for_a_network_with_a_logit_of_each(tmp_path):
    features = Features([Numeric("x")], label="y", label_classes=["no", "yes"], label_dtype="int32")
    net = WideDeep(features, dim=1, hidden=[4], classes=2)
    trainer = Trainer(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.1), features=features)
    x = np.linspace(-3, 3, 64)
    rows = {"x": x, "y": np.where(x > 0, "yes", "no")}
    trainer.fit(rows, epochs=20, batch_size=64, callbacks=[Publish(tmp_path / "v")])
    with ServedModel(tmp_path / "v", follow=False) as model:
        names = model.predict(ROWS, output="class")
    assert [names[0], names[-1]] == ["no", "yes"]

"""A script for `mindspore.Model` runs with another import: same order, same names, same weights."""

import inspect

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Model, nn
from mindspore.train import MAE, LossMonitor
from mindspore.train import Callback as MindSporeCallback

from trainer import Model as OurModel
from trainer import RecModel, Trainer
from trainer.compat import verbs
from trainer.errors import ConfigurationError, DataError


def script(kind, linear, data):
    """What a user of `Model` writes."""
    network = linear()
    model = kind(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), metrics={"mae"})
    dataset = ms_dataset.NumpySlicesDataset(data, shuffle=False).batch(64)
    valid = ms_dataset.NumpySlicesDataset(data, shuffle=False).batch(100)
    model.train(2, dataset, callbacks=[], dataset_sink_mode=False)
    results = model.eval(valid, dataset_sink_mode=False)
    return network, results, model.predict(mindspore.Tensor(data["x"]))


def test_train_eval_and_predict_as_model_does(linear, cancer):
    data = {name: column[:512] for name, column in cancer.items()}
    (theirs, their_results, their_prediction), (ours, our_results, our_prediction) = (
        script(kind, linear, data) for kind in (Model, OurModel)
    )
    for expected, found in zip(theirs.trainable_params(), ours.trainable_params(), strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), atol=1e-5)
    assert our_results["mae"] == pytest.approx(their_results["mae"], rel=1e-5)
    np.testing.assert_allclose(our_prediction.asnumpy(), their_prediction.asnumpy(), atol=1e-4)


def test_mae_by_name_is_the_mean_of_probabilities_and_in_model_that_of_mindspore(linear, cancer):
    values = {}
    data = {name: column[:100] for name, column in cancer.items()}
    for kind, metric in ((Trainer, "mae"), (OurModel, "mae"), (Trainer, MAE())):
        network = linear()
        trainer = kind(network, nn.BCEWithLogitsLoss(), metrics={"value": metric})
        values[kind, str(metric)] = trainer.evaluate(data, batch_size=100)["value"]
    logits = Trainer(network).predict(data["x"]).astype(np.float64)
    probability, raw = np.abs(1 / (1 + np.exp(-logits)) - data["y"]).mean(), np.abs(logits - data["y"]).mean()
    assert list(values.values()) == pytest.approx([probability, raw, raw], rel=1e-5)


def test_fit_takes_epoch_and_dataset_in_models_order(linear, cancer):
    network = linear()
    trainer = OurModel(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    dataset = ms_dataset.NumpySlicesDataset(cancer, shuffle=False).batch(64)
    trainer.fit(2, dataset, dataset, callbacks=[LossMonitor(100)], sink_size=1)
    assert trainer.state.progress.epoch == 2
    trainer.train(3, dataset, callbacks=[], initial_epoch=2)
    assert trainer.state.progress.epoch == 3


def test_fit_takes_the_limits_of_a_trainer(linear, cancer):
    network = linear()
    model = OurModel(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    model.fit(10**6, cancer, batch_size=64, max_time=0.05)
    assert "seconds=0.05" in str(model.state.stop_reason)
    model.fit(10**6, cancer, batch_size=64, max_steps=3)
    assert "steps=" in str(model.state.stop_reason)


def test_fit_of_a_trainer_takes_the_data_first(linear, cancer):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(DataError, match=r"takes the data first .*received 2 as the data.*trainer\.Model"):
        trainer.fit(2, cancer)


def test_fit_takes_all_arguments_of_models_fit(linear, cancer):
    network = linear()
    trainer = OurModel(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    dataset = ms_dataset.NumpySlicesDataset(cancer, shuffle=False).batch(64)
    history = trainer.fit(
        epoch=5,
        train_dataset=dataset,
        valid_dataset=dataset,
        valid_frequency=2,
        callbacks=[LossMonitor(100)],
        valid_dataset_sink_mode=False,
        initial_epoch=1,
    )
    assert (trainer.state.progress.epoch, trainer.state.progress.global_step) == (5, 4 * 9)
    assert len(history.history["val_loss"]) == 2
    with pytest.raises(ConfigurationError, match=r"valid_frequency takes a whole number >= 1 \(epochs.*; received 0"):
        trainer.fit(5, dataset, dataset, 0)
    with pytest.raises(TypeError, match=r"dataset_sink_mode: .*takes True or False; received 'valid'"):
        trainer.fit(5, dataset, dataset, dataset_sink_mode="valid")
    accepted = set(inspect.signature(verbs.fit).parameters) | {"self"}
    assert set(inspect.signature(Model.fit).parameters) <= accepted


def test_the_other_names_of_model(linear, cancer, batches, tmp_path):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))
    trainer.build(ms_dataset.NumpySlicesDataset(cancer, shuffle=False).batch(64))
    trainer.online_train(train_dataset=batches(64, 2), callbacks=[])
    assert trainer.state.progress.global_step == 2
    assert trainer.predict_network is network
    mindspore.save_checkpoint(trainer.train_network, str(tmp_path / "all.ckpt"))
    assert {"0.weight", "moment1.0.weight", "global_step"} <= set(mindspore.load_checkpoint(str(tmp_path / "all.ckpt")))


def test_the_constructor_takes_models_arguments_in_its_order():
    ours = list(inspect.signature(Trainer).parameters)
    theirs = [name for name in inspect.signature(Model.__init__).parameters if name not in ("self", "kwargs")]
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("kind", [Trainer, RecModel])
def test_a_sink_mode_that_is_no_bool_is_a_type_error_under_every_verb(kind, linear, batches):
    network = linear()
    model = kind(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), metrics={"mae"})
    data, mode = batches(64, 1), {"dataset_sink_mode": "valid"}
    for call in (
        lambda: model.online_train(data, **mode),
        lambda: model.fit(data, **mode),
        *([lambda: model.fit(1, data, **mode)] if kind is RecModel else []),
        lambda: model.train(1, data, **mode),
        lambda: model.evaluate(data, **mode),
        lambda: model.eval(data, **mode),
        lambda: model.compile(data, **mode),
        lambda: model.build(data, sink_mode="valid"),
    ):
        with pytest.raises(TypeError, match=r"dataset_sink_mode: The input value must be a bool, but got str"):
            call()
    for size in (-1, 0, 1.5):  # MindSpore Rec raises ValueError as well
        with pytest.raises(ValueError, match="sink_size"):
            model.online_train(data, dataset_sink_mode=True, sink_size=size)
    assert model.state.progress.global_step == 0


def test_a_stream_after_a_training_from_a_later_epoch_is_the_first_epoch(linear, batches):
    class Epochs(MindSporeCallback):
        def on_train_epoch_begin(self, run_context):
            seen.append(run_context.original_args().cur_epoch_num)

    seen = []
    network = linear()
    model = RecModel(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    model.train(3, batches(64, 2), Epochs(), initial_epoch=2)
    model.online_train(batches(64, 2), Epochs())
    assert seen == [3, 1]

"""MindSpore's own callbacks, as installed, in this trainer's runs."""

import re

import numpy as np
import pytest
from mindspore import Tensor, amp, load_checkpoint, nn
from mindspore import train as ms
from mindspore.dataset import NumpySlicesDataset

from callbacks import LambdaCallback, adapt
from trainer import Model, Trainer
from trainer.embedding import Embedding, RowSGD
from trainer.errors import ConfigurationError


class Recorder(ms.Callback):
    """Notes every hook, by its newer name, with the numbers MindSpore documents."""

    def __init__(self):
        self.seen = []
        self.entered = []

    def __enter__(self):
        self.entered.append("enter")
        return self

    def __exit__(self, *error):
        self.entered.append(error[0])

    def note(self, name, run_context):
        params = run_context.original_args()
        self.seen.append((name, params.mode, params.get("cur_epoch_num"), params.cur_step_num, params.batch_num))


for _hook in (
    *("on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "on_train_step_end", "on_train_epoch_end"),
    *("on_train_end", "on_eval_begin", "on_eval_epoch_begin", "on_eval_step_begin", "on_eval_step_end"),
    *("on_eval_epoch_end", "on_eval_end"),
):
    setattr(Recorder, _hook, lambda self, run_context, name=_hook: self.note(name, run_context))


def test_hooks_come_in_the_order_and_with_the_numbers_of_mindspores_own_loop(fit):
    recorder = Recorder()
    fit(recorder, epochs=1, sink_size=4)
    assert recorder.seen == [
        ("on_train_begin", "train", None, 0, 8),
        ("on_train_epoch_begin", "train", 1, 0, 8),
        ("on_train_step_begin", "train", 1, 1, 8),
        ("on_train_step_end", "train", 1, 4, 8),
        ("on_train_step_begin", "train", 1, 5, 8),
        ("on_train_step_end", "train", 1, 8, 8),
        ("on_eval_begin", "eval", 1, 0, 1),
        ("on_eval_epoch_begin", "eval", 1, 0, 1),
        ("on_eval_step_begin", "eval", 1, 1, 1),
        ("on_eval_step_end", "eval", 1, 1, 1),
        ("on_eval_epoch_end", "eval", 1, 1, 1),
        ("on_eval_end", "eval", 1, 1, 1),
        ("on_train_epoch_end", "train", 1, 8, 8),
        ("on_train_end", "train", 1, 8, 8),
    ]
    assert recorder.entered == ["enter", None]


def test_a_stream_is_one_epoch_to_them(online):
    recorder = Recorder()
    online([None] * 3, recorder)
    names = [name for name, *_ in recorder.seen if "step" not in name]
    assert names == ["on_train_begin", "on_train_epoch_begin", "on_train_epoch_end", "on_train_end"]
    assert recorder.seen[-2][1:] == ("train", 1, 3, 3)


def test_a_pipeline_is_what_they_see_as_the_dataset(fit, cancer):
    seen = []
    see = ms.LambdaCallback(on_train_begin=lambda context: seen.append(context.original_args().train_dataset))
    pipeline = NumpySlicesDataset(cancer["train"], shuffle=False).batch(64)
    fit(see, epochs=1, data=pipeline, batch_size=None, valid=False)
    fit(see, epochs=1)
    assert seen == [pipeline, None]


def test_a_callback_leaves_its_context_with_the_exception(fit):
    recorder = Recorder()
    with pytest.raises(OSError, match="disk"):
        fit(recorder, fail_at=3)
    assert recorder.entered == ["enter", OSError]


def test_older_names_and_what_the_parameters_hold(fit):
    seen = {}

    class Old(ms.Callback):
        def step_end(self, run_context):
            params = run_context.original_args()
            seen["outputs"], seen["element"] = params.net_outputs, params.train_dataset_element
            seen["names"] = {p.name for p in params["train_network"].get_parameters()}
            seen["has"] = (hasattr(params, "batch_num"), hasattr(params, "missing"), "net_outputs" in params)
            seen["types"] = (type(params.optimizer).__name__, type(params.loss_fn).__name__)

        def epoch_end(self, run_context):
            seen["eval_results"] = dict(run_context.original_args().eval_results)

        def end(self, run_context):
            seen["left"] = run_context.original_args().get("eval_results")

    trainer = fit(Old(), epochs=1, sink_size=4)
    assert isinstance(seen["outputs"], Tensor)
    assert float(seen["outputs"].asnumpy()) == trainer.state.outputs.loss
    assert [tensor.shape for tensor in seen["element"]] == [(64, 30), (64, 1)]
    assert {"0.weight", "moment1.0.weight", "global_step"} <= seen["names"]
    assert seen["has"] == (True, False, True)
    assert seen["types"] == ("Adam", "BCEWithLogitsLoss")
    metrics = trainer.state.metrics
    assert seen["eval_results"] == {
        "auc": metrics["val_auc"],
        "eval_loss": metrics["val_loss"],
    }
    assert seen["left"] is None


def test_in_a_validation_the_older_names_are_not_called(fit):
    ends = []

    class Old(ms.Callback):
        def end(self, run_context):
            ends.append(run_context.original_args().mode)

    trainer = fit(Old(), epochs=2)
    assert ends == ["train"]
    trainer.evaluate({"x": np.zeros((4, 30), np.float32), "y": np.zeros((4, 1), np.float32)}, Old(), batch_size=4)
    assert ends == ["train", "eval"]


def test_a_requested_stop_ends_the_run(fit):
    class Stop(ms.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 3:
                run_context.request_stop()

    adapted = adapt(Stop())
    trainer = fit(adapted, valid=False)
    assert trainer.state.progress.global_step == 3
    assert str(trainer.state.stop_reason) == "callback: Stop requested a stop in on_train_step_end"
    again = fit(adapted, valid=False, fresh=False, epochs=1)
    assert again.state.progress.global_step == 6  # steps are counted from the beginning of the call


def test_loss_monitor(fit, capsys):
    trainer = fit(ms.LossMonitor(4), epochs=1)
    out = capsys.readouterr().out
    assert re.search(r"epoch: 1 step: 4, loss is [\d.]+", out)
    assert f"epoch: 1 step: 8, loss is {trainer.state.outputs.loss}" in out
    assert "Eval result: epoch 1, metrics: {'auc': " in out


def test_steps_are_numbered_within_the_epoch_when_data_has_no_size(fit, cancer, capsys):
    def batches():
        for first in range(0, 512, 64):
            yield cancer["train"]["x"][first : first + 64], cancer["train"]["y"][first : first + 64]

    fit(ms.LossMonitor(4), ms.TimeMonitor(), data=batches, batch_size=None, valid=False, epochs=2)
    out = capsys.readouterr().out
    assert re.findall(r"epoch: (\d) step: (\d+)", out) == [("1", "4"), ("1", "8"), ("2", "4"), ("2", "8")]
    epoch, step = map(float, re.search(r"epoch time: +([\d.]+) ms, per step time: +([\d.]+)", out).groups())
    assert step == pytest.approx(epoch / 8, abs=0.01)


def test_time_monitor(fit, capsys):
    fit(ms.TimeMonitor(data_time=True), epochs=2)
    out = capsys.readouterr().out
    assert (
        len(re.findall(r"Train epoch time: +[\d.]+ ms, per step time: +[\d.]+ ms \(data time: +[\d.]+ ms\)", out)) == 2
    )


def test_history(fit):
    history = ms.History()
    trainer = fit(history, epochs=2)
    assert history.epoch == {"epoch": [1, 2]}
    assert history.history["auc"][-1] == trainer.state.metrics["val_auc"]
    assert history.history["net_output"][-1] == pytest.approx(trainer.state.outputs.loss)


def test_model_checkpoint(fit, tmp_path):
    config = ms.CheckpointConfig(save_checkpoint_steps=8, keep_checkpoint_max=2)
    trainer = fit(ms.ModelCheckpoint("net", str(tmp_path / "ckpt"), config), epochs=3)
    saved = sorted(path.name for path in (tmp_path / "ckpt").glob("*.ckpt"))
    assert saved == ["net-2_8.ckpt", "net-3_8.ckpt"]
    values = load_checkpoint(str(tmp_path / "ckpt" / "net-3_8.ckpt"))
    for cell in (trainer.network, trainer.optimizer):
        for parameter in cell.get_parameters():
            np.testing.assert_array_equal(values[parameter.name].asnumpy(), parameter.asnumpy())


def test_early_stopping_and_its_best_weights(fit):
    values = iter([0.9, 0.5, 0.4])
    weights = {}

    def replace(trainer):
        trainer.state.metrics["val_auc"] = next(values)
        weights.setdefault("best", trainer.network[0].weight.asnumpy().copy())

    stopping = ms.EarlyStopping("auc", patience=2, restore_best_weights=True)
    trainer = fit(LambdaCallback(on_eval_end=replace), stopping, epochs=3)
    assert adapt(stopping).monitor == "val_auc"
    assert stopping.stopped_epoch == 3
    assert trainer.state.stop_reason.detail == "EarlyStopping requested a stop in on_train_epoch_end"
    np.testing.assert_array_equal(trainer.network[0].weight.asnumpy(), weights["best"])


def test_reduce_lr_on_plateau(fit):
    plateau = LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_loss=1.0))
    trainer = fit(plateau, ms.ReduceLROnPlateau("eval_loss", factor=0.5, patience=1), epochs=3)
    assert trainer.learning_rate == pytest.approx(0.0025)


def test_lambda_callback_and_learning_rate_scheduler(fit):
    losses = []
    by_step = ms.LearningRateScheduler(lambda rate, step: 0.01 / step)
    step = ms.LambdaCallback(on_train_step_end=lambda context: losses.append(context.original_args().net_outputs))
    trainer = fit(step, by_step, epochs=1, valid=False)
    assert len(losses) == 8
    assert trainer.learning_rate == pytest.approx(0.01 / 8)


def test_a_metric_that_is_not_produced_is_refused_under_the_name_it_has_here(fit):
    with pytest.raises(ValueError, match=r"EarlyStopping\(monitor='val_acu'\).*did you mean 'val_auc'"):
        fit(ms.EarlyStopping("acu"))


class Outputs(ms.Callback):
    def on_train_step_end(self, run_context):
        self.outputs = run_context.original_args().net_outputs


@pytest.mark.parametrize("drops", [False, True])
def test_steps_return_overflow_and_scale_where_mindspores_would(drops):
    network, seen = nn.Dense(2, 1), Outputs()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9, loss_scale=1 if drops else 128)
    manager = amp.FixedLossScaleManager(128, drop_overflow_update=drops)
    trainer = Trainer(network, nn.MSELoss(), optimizer, loss_scale_manager=manager)
    rows = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    trainer.fit(rows, batch_size=4, callbacks=[seen])
    loss = seen.outputs[0] if drops else seen.outputs  # TrainOneStepWithLossScaleCell, TrainOneStepCell
    assert isinstance(loss, Tensor)
    assert not drops or (not seen.outputs[1], seen.outputs[2].item()) == (True, 128)


class Rows:
    def clear(self):
        self.rows = 0

    def update(self, predictions, labels):
        self.rows += len(labels)

    def eval(self):
        return {"all": self.rows}


class OfValidations(ms.Callback):
    def __init__(self):
        self.seen = []

    def on_eval_step_end(self, run_context):
        self.seen.append(run_context.original_args().net_outputs[1].shape)

    def on_eval_end(self, run_context):
        self.seen.append(run_context.original_args().metrics)


@pytest.mark.parametrize("hook", ["on_eval_begin", "on_eval_step_begin", "on_eval_step_end", "on_eval_end"])
def test_an_evaluation_in_a_hook_of_a_validation_leaves_the_others_theirs(hook):
    network, seen, data = nn.Dense(3, 1), OfValidations(), (np.ones((8, 3), np.float32), np.ones((8, 1), np.float32))
    trainer, evaluated = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params()), {"rows": Rows()}), []
    other = NumpySlicesDataset(tuple(column[:2] for column in data)).batch(1)
    evaluate = LambdaCallback(order=-1, **{hook: lambda trainer: evaluated.append(trainer.eval(other))})
    trainer.fit(data, batch_size=4, callbacks=[evaluate, seen], valid_dataset=data)
    assert seen.seen == [(4, 1), (4, 1), {"rows": {"all": 8}}]
    assert evaluated[0] == {"rows": {"all": 2}}


class Taste(nn.Cell):
    def __init__(self):
        super().__init__()
        self.people = Embedding(2)

    def construct(self, person):
        return self.people(person).sum(1)


def test_what_leaves_out_the_rows_of_sparse_tables_is_refused_or_named(tmp_path, caplog):
    trainer = Trainer(Taste(), nn.MSELoss(), RowSGD(0.1))
    rows = {"person": np.arange(4), "label": np.ones(4, np.float32)}
    with pytest.raises(ConfigurationError, match=r"would not restore the rows of sparse tables \(people"):
        trainer.fit(rows, batch_size=4, callbacks=[ms.EarlyStopping("loss", restore_best_weights=True)])
    caplog.clear()
    trainer.fit(rows, batch_size=4, callbacks=[ms.EarlyStopping("loss")])
    assert not caplog.records
    trainer.fit(rows, batch_size=4, callbacks=[ms.ModelCheckpoint(directory=str(tmp_path))])
    assert "ModelCheckpoint saves the parameters, not the rows of sparse tables (people)" in caplog.text


class Writer(ms.Callback):
    def on_train_begin(self, run_context):
        run_context.original_args().steps = 0

    def on_train_step_end(self, run_context):
        run_context.original_args().steps += 1


class Teller(ms.Callback):
    def __init__(self):
        self.seen = []

    def on_train_step_end(self, run_context):
        self.seen.append((run_context.original_args()["steps"], run_context.original_args().cur_step_num))

    def on_eval_step_end(self, run_context):
        self.seen.append((run_context.original_args().mode, run_context.original_args().cur_step_num))

    def on_eval_end(self, run_context):
        self.seen.append(("metrics", *run_context.original_args().metrics))

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        self.seen.append((params.mode, params.steps, params.cur_step_num, *params.metrics))


@pytest.mark.parametrize("kind", [ms.Model, Model], ids=["MindSpore", "here"])
def test_callbacks_hand_values_to_each_other_in_their_parameters(kind):
    data = [NumpySlicesDataset({"x": np.ones((8, 2), np.float32), "y": np.ones((8, 1), np.float32)}) for _ in range(2)]
    network, tellers = nn.Dense(2, 1), (Teller(), Teller())
    model = kind(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), metrics={"mae": ms.MAE()})
    model.fit(1, data[0].batch(4), data[1].batch(4), callbacks=[Writer(), *tellers])
    expected = [(1, 1), (2, 2), ("eval", 1), ("eval", 2), ("metrics", "mae"), ("train", 2, 2, "mae")]
    assert [teller.seen for teller in tellers] == [expected, expected]

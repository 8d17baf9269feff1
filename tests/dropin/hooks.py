"""Cases: MindSpore's own callbacks, one by one."""

import re
from pathlib import Path

import mindspore
from mindspore import train as ms

from tests.dropin.cases import Recorder, case, model, pipeline, plain, weights


@case("LossMonitor prints")
def _(kind, folder, capsys):
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[ms.LossMonitor(2)])
    return capsys.readouterr().out


@case("TimeMonitor prints, its evaluation lines too")
def _(kind, folder, capsys):
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[ms.TimeMonitor()])
    return re.sub(r"[\d.]+ ms", "# ms", capsys.readouterr().out)


@case("History")
def _(kind, folder):
    history = ms.History()
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[history])
    losses = {"eval_loss": 0.0}
    return history.epoch, {name: plain(values) for name, values in history.history.items() if name not in losses}


@case("LambdaCallback")
def _(kind, folder):
    seen = []
    note = ms.LambdaCallback(
        on_train_epoch_begin=lambda c: seen.append(c.original_args().cur_epoch_num),
        on_train_step_end=lambda c: seen.append(plain(c.original_args().net_outputs)),
        on_train_end=lambda c: seen.append("end"),
    )
    model(kind).train(2, pipeline(), callbacks=note)
    return seen


@case("ModelCheckpoint writes the same files")
def _(kind, folder):
    config = ms.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=9)
    made = model(kind)
    made.train(2, pipeline(), callbacks=[ms.ModelCheckpoint("net", str(folder), config)])
    files = sorted(path.name for path in Path(folder).glob("*.ckpt"))
    return files, {name: plain(mindspore.load_checkpoint(str(folder / files[-1]))[name]) for name in ("weight", "bias")}


@case("EarlyStopping stops at the same epoch")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    stop = ms.EarlyStopping("mae", patience=1, min_delta=10.0)
    made.fit(5, pipeline(), pipeline(8), callbacks=[stop, recorder])
    return stop.stopped_epoch, sum(name == "on_train_epoch_end" for name, _ in recorder.seen)


@case("ReduceLROnPlateau lowers the same rates")
def _(kind, folder):
    made = model(kind)
    made.fit(4, pipeline(), pipeline(8), callbacks=[ms.ReduceLROnPlateau("mae", 0.5, patience=1, min_delta=10.0)])
    return plain(made.train_network.optimizer.learning_rate.value())


@case("LearningRateScheduler sets the same rates")
def _(kind, folder):
    made = model(kind)
    made.train(1, pipeline(), callbacks=[ms.LearningRateScheduler(lambda rate, step: rate / (1 + step))])
    return plain(made.train_network.optimizer.learning_rate.value()), weights(made.predict_network)


@case("OnRequestExit is quiet until asked")
def _(kind, folder):
    made = model(kind)
    made.train(1, pipeline(), callbacks=[ms.OnRequestExit(save_ckpt=False, save_mindir=False, directory=str(folder))])
    return weights(made.predict_network)


@case("BackupAndRestore")
def _(kind, folder):
    made = model(kind)
    made.train(2, pipeline(), callbacks=[ms.BackupAndRestore(str(folder / "backup"), 1, True)])
    return weights(made.predict_network), sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


@case("request_stop in a step")
def _(kind, folder):
    class Stop(ms.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 2:
                run_context.request_stop()

    made, recorder = model(kind), Recorder()
    made.train(3, pipeline(12), callbacks=[Stop(), recorder])
    return [name for name, _ in recorder.seen]


@case("callbacks of the older names")
def _(kind, folder):
    seen = []

    class Old(ms.Callback):
        def begin(self, c):
            seen.append("begin")

        def epoch_begin(self, c):
            seen.append(c.original_args().get("cur_epoch_num"))

        def step_end(self, c):
            seen.append(plain(c.original_args()["net_outputs"]))

        def end(self, c):
            seen.append("end")

    made = model(kind)
    made.train(1, pipeline(), callbacks=[Old()])
    made.eval(pipeline(8), callbacks=[Old()])
    return seen

"""Signals: the step ends, a snapshot is written, handlers are put back; the second one leaves at once."""

import os
import signal
import sys
import threading

import pytest
from mindspore import nn

from trainer import Callback, Every, ModelCheckpoint, Trainer, checkpoint
from trainer.data import waiting
from trainer.errors import ConfigurationError
from trainer.run.signals import StopOnSignal

SCRIPT = """
import sys, time
import numpy as np
from mindspore import nn
from trainer import Callback, ModelCheckpoint, Trainer

class Tell(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == 3:
            print("ready", flush=True)
        time.sleep(0.01)

class Hang(Callback):
    def on_train_end(self, trainer):
        print("stopping", flush=True)
        time.sleep(3600)

rng = np.random.default_rng(0)
data = {"x": rng.normal(size=(320, 30)).astype(np.float32), "y": rng.integers(0, 2, (320, 1)).astype(np.float32)}
network = nn.SequentialCell(nn.Dense(30, 1))
trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
callbacks = [Tell(), ModelCheckpoint(sys.argv[1], every=10**6)]
if sys.argv[2] == "hang":
    callbacks.append(Hang())
trainer.fit(data, 10**6, callbacks=callbacks, batch_size=32, sink_size=1)
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory, forks):
    """Return four real processes, each of which was sent its signals while it trained: {name: (process, folder)}."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "script.py").write_text(SCRIPT)
    started = {}
    for name in ("term", "hup", "int", "hang"):  # one after another: two that train slow each other down
        process = forks.start(folder / "script.py", folder / name, name)
        started[name] = process, folder / name
        process.wait_for("ready\n")
        process.send_signal({"int": signal.SIGINT, "hup": signal.SIGHUP}.get(name, signal.SIGTERM))
        if name == "hang":
            process.wait_for("stopping\n")
            process.send_signal(signal.SIGTERM)
        process.wait()
    return started


@pytest.mark.process
class TestProcesses:
    @pytest.mark.parametrize(("name", "code"), [("term", 143), ("hup", 129)])
    def test_sigterm_and_sighup_save_and_exit_with_128_and_their_number(self, name, code, processes):
        process, root = processes[name]
        assert process.returncode == code
        snapshot = checkpoint.find(root)
        assert snapshot.step == snapshot.state["progress"]["global_step"] >= 3

    def test_sigint_saves_and_ends_as_interrupted(self, processes):
        process, root = processes["int"]
        # Python ends itself with SIGINT, which shells show as 130; inside a graph MindSpore turns it into SIGTERM
        assert process.returncode in (-signal.SIGINT, 143)
        assert checkpoint.find(root).step >= 3

    def test_a_second_signal_exits_at_once(self, processes):
        process, _ = processes["hang"]
        assert process.returncode == 143


FOLLOWED = """
import os, signal, sys, time
from trainer.data.waiting import DATA_WAIT
from trainer.run.signals import GRACE_SECONDS, StopOnSignal

with StopOnSignal(print):
    os.kill(os.getpid(), signal.SIGTERM)
with StopOnSignal(print), DATA_WAIT:
    time.sleep(GRACE_SECONDS + 0.5)
"""


@pytest.mark.process
def test_a_signal_to_one_run_is_not_taken_for_one_to_the_next(forks):
    ended = forks.start("-c", FOLLOWED)
    assert (ended.wait(), ended.output.read_text()) == (0, "SIGTERM\n"), ended.errors.read_text()


@pytest.fixture(scope="module")
def trainer(linear):
    network = linear()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), metrics=["auc"])


class Send(Callback):
    """Sends this process a signal at one place."""

    def __init__(self, hook, number, step):
        self.number, self.step, self.calls = number, step, 0
        setattr(self, hook, self._send)

    def _send(self, trainer):
        self.calls += 1
        if trainer.state.progress.global_step % 9 == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "step", "raised"),
    # from the first graph call of the run on, MindSpore turns SIGINT into SIGTERM
    [(signal.SIGTERM, 4, SystemExit), (signal.SIGINT, 0, KeyboardInterrupt), (signal.SIGINT, 4, SystemExit)],
    ids=["term", "int before the first graph", "int"],
)
def test_the_step_ends_is_saved_and_the_handlers_are_put_back(number, step, raised, trainer, batches, tmp_path):
    before = [signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)]
    start = trainer.state.progress.global_step
    with pytest.raises(raised):
        trainer.fit(
            batches(64),
            5,
            callbacks=[Send("on_train_step_begin", number, step), ModelCheckpoint(tmp_path, every=1000)],
            sink_size=1,
        )
    assert trainer.state.progress.global_step % 9 == step + 1
    assert checkpoint.find(tmp_path).step == trainer.state.progress.global_step > start
    assert trainer.state.stop_reason.kind == "signal"
    assert trainer.state.phase == "idle"
    assert [signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)] == before
    trainer.state.progress.global_step = 0


@pytest.mark.parametrize("verb", ["fit", "evaluate"])
def test_in_the_middle_of_an_evaluation(verb, trainer, batches, tmp_path):
    trainer.state.progress.global_step = 0
    send, saving = Send("on_eval_step_end", signal.SIGTERM, 2 * (verb == "fit")), ModelCheckpoint(tmp_path, every=1000)
    call = {
        "fit": lambda: trainer.fit(batches(64), 5, batches(64), Every(steps=2), callbacks=[send, saving], sink_size=1),
        "evaluate": lambda: trainer.evaluate(batches(64), send),
    }[verb]
    with pytest.raises(SystemExit) as left:
        call()
    assert left.value.code == 143
    assert send.calls == 1
    if verb == "fit":
        assert checkpoint.find(tmp_path).step == trainer.state.progress.global_step == 2
    assert not trainer.network.training


def test_in_the_middle_of_a_prediction(trainer, batches):
    stream = trainer.predict(batches(64), stream=True)
    next(stream)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        next(stream)
    assert trainer.state.phase == "idle"


def test_another_thread_changes_no_handlers():
    before = signal.getsignal(signal.SIGTERM)
    inside = []

    def enter():
        with StopOnSignal(lambda name: None):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert inside == [before]


def test_an_interactive_session_gets_a_keyboard_interrupt_and_goes_on(trainer, batches, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt):
            trainer.evaluate(batches(64), Send("on_eval_step_end", number, trainer.state.progress.global_step % 9))
    assert trainer.evaluate(batches(64))["loss"] > 0


def test_a_training_interrupted_in_a_notebook_returns_its_history_and_goes_on(trainer, batches, monkeypatch, caplog):
    monkeypatch.setattr("builtins.get_ipython", lambda: None, raising=False)
    trainer.state.progress.global_step = 0
    for number, step in ((signal.SIGINT, 0), (signal.SIGINT, 4), (signal.SIGTERM, 2)):
        with caplog.at_level("INFO"):
            history = trainer.fit(batches(64), 5, callbacks=[Send("on_train_step_begin", number, step)], sink_size=1)
        assert trainer.state.progress.global_step == step + 1
        assert trainer.state.stop_reason.detail == "interrupted"
        assert history is trainer.history
        trainer.state.progress.global_step = 0
    assert "SIG" not in caplog.text
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    trainer.fit(batches(64), 1, callbacks=[])
    assert trainer.state.progress.global_step == 9
    trainer.state.progress.global_step = 0


def test_sighup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal(lambda name: None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not signals.called
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_thread_gets_an_error_that_names_the_training_thread(trainer, batches):
    network = nn.Dense(30, 1)
    other = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    refused = []

    def call_verbs():
        calls = (
            lambda: other.fit(batches(64), callbacks=[]),
            lambda: other.predict(batches(64)),
            lambda: other.compile(batches(64)),
            lambda: trainer.evaluate(batches(64)),
        )
        for verb in calls:
            try:
                verb()
            except ConfigurationError as error:
                refused.append(str(error))

    class Meanwhile(Callback):
        def on_train_step_end(self, trainer):
            thread = threading.Thread(target=call_verbs, name="second")
            thread.start()
            thread.join()

    trainer.fit(batches(64, 1), callbacks=[Meanwhile()])
    assert len(refused) == 4
    assert "called on thread 'second' while thread 'MainThread' is inside fit" in refused[0]
    call_verbs()
    assert len(refused) == 4
    trainer.state.progress.global_step = 0


def test_wherever_a_signal_strikes_a_wait_the_wait_is_over():
    """A wait taken for one still under way would be wound up a second time, by the thread that watches."""
    struck, left = [], []

    def strike(at):
        lines = 0

        def trace(frame, event, argument):
            nonlocal lines
            if frame.f_code.co_filename != waiting.__file__ or frame.f_code.co_name == "leave":
                return None
            if event == "line":
                lines += 1
                if lines == at:
                    struck.append((frame.f_code.co_name, frame.f_lineno))
                    os.kill(os.getpid(), signal.SIGTERM)
            return trace

        asked = []
        with StopOnSignal(asked.append):
            tracer = sys.gettrace()
            sys.settrace(trace)
            try:
                with waiting.DATA_WAIT:
                    pass
            except waiting.Interrupted:
                left.append(at)
            finally:
                sys.settrace(tracer)
            assert not waiting.DATA_WAIT.active
        return asked == ["SIGTERM"]

    at = 1
    while strike(at):
        at += 1
    assert {name for name, _ in struck} == {"__enter__", "__exit__"}
    assert left


@pytest.mark.long
def test_another_trainer_may_be_used_in_a_callback(trainer, linear, batches, tmp_path):
    class Ask(Callback):
        def on_train_step_begin(self, trainer):
            if trainer.state.progress.global_step % 9 == 2:
                other.evaluate(batches(64), callbacks=[])

    network = linear()
    other = Trainer(network, nn.BCEWithLogitsLoss())
    before = [signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)]
    trainer.state.progress.global_step = 0
    callbacks = [Ask(), Send("on_train_step_begin", signal.SIGTERM, 4), ModelCheckpoint(tmp_path, every=1000)]
    with pytest.raises(SystemExit):
        trainer.fit(batches(64), 5, callbacks=callbacks, sink_size=1)
    assert checkpoint.find(tmp_path).step == trainer.state.progress.global_step == 5
    trainer.state.progress.global_step = 0
    trainer.fit(batches(64), 1, callbacks=[Ask()], sink_size=1)
    assert [signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)] == before
    trainer.state.progress.global_step = 0

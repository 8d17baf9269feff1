"""A tracking server that goes away ends no run."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from callbacks import LambdaCallback, Logger, MLflowLogger, ModelCheckpoint
from callbacks.loggers.sender import Sender

SERVER = Path(__file__).with_name("mlflow_server.py")


class TrackingServer:
    """MLflow's server on a free port; it can be stopped and started again."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = f"sqlite:///{folder / 'server.db'}"
        self.process = None

    def start(self):
        arguments = [self.database, str(self.folder / "artifacts"), str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=1).close()
                return
            time.sleep(0.1)
        raise TimeoutError("MLflow's server does not answer")

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # else each request is tried for four minutes
    server = TrackingServer(tmp_path)
    server.start()
    yield server
    server.stop()


def at(step, action):
    def hook(trainer):
        if trainer.state.progress.global_step == step:
            action()

    return LambdaCallback(on_train_step_end=hook)


@pytest.mark.long
@pytest.mark.server
def test_a_server_that_goes_away_in_mid_run_ends_no_run_and_gets_every_point_when_it_is_back(
    fit, server, tmp_path, caplog
):
    from mlflow.tracking import MlflowClient

    logger = MLflowLogger(tracking_uri=server.uri)

    def wait_for_the_first_points():
        while logger.run_id is None:
            time.sleep(0.01)

    trainer = fit(
        at(3, wait_for_the_first_points), at(4, server.stop), at(12, server.start), logger, epochs=2, valid=False
    )
    assert trainer.state.progress.global_step == 16
    assert trainer.state.stop_reason.kind == "limit"
    assert caplog.text.count("MLflowLogger cannot report") == 1
    client = MlflowClient(tracking_uri=server.database)
    assert [point.step for point in client.get_metric_history(logger.run_id, "train/loss")] == list(range(1, 17))
    assert client.get_run(logger.run_id).info.status == "FINISHED"


def test_a_server_that_stays_away_is_waited_for_a_while_only(caplog):
    def away():
        raise ConnectionError("no answer")

    sender = Sender("Logger", lambda error: True, capacity=4)
    for _ in range(6):
        sender.send(away)
    assert not sender.wait(5)
    sender.close(10)
    assert caplog.text.count("cannot report") == 1
    assert "requests were not sent" in caplog.text


def test_a_request_that_is_refused_is_dropped_and_the_next_ones_are_sent(caplog):
    sent = []

    def refuse():
        raise ValueError("no such metric")

    sender = Sender("Logger", lambda error: isinstance(error, OSError))
    for request in (lambda: sent.append(1), refuse, lambda: sent.append(2)):
        sender.send(request)
    assert sender.wait(5)
    sender.close(5)
    assert sent == [1, 2]


@pytest.mark.long
def test_uploads_that_mlflow_refuses_cost_no_point_and_end_no_run(fit, tmp_path, caplog):
    from mlflow.tracking import MlflowClient

    (tmp_path / "mlartifacts").write_text("a file where a folder should be")
    logger = MLflowLogger(log_snapshots=True)
    trainer = fit(logger, ModelCheckpoint(every=3), epochs=2, valid=False)
    assert trainer.state.progress.global_step == 16
    assert trainer.state.stop_reason.kind == "limit"
    assert caplog.text.count("MLflowLogger cannot report") == 1
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert [point.step for point in client.get_metric_history(logger.run_id, "train/loss")] == list(range(1, 17))
    assert client.get_run(logger.run_id).info.status == "FINISHED"


DYING = """
import os, psutil, numpy as np
from mindspore import nn
from callbacks import CSVLogger, LambdaCallback, WandbLogger
from trainer import Trainer

def kill(trainer):
    if trainer.state.progress.global_step == 4:
        for process in psutil.Process().children(recursive=True):
            process.kill()

network = nn.Dense(2, 1)
trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), run_dir=".")
logger = WandbLogger(mode="offline", options={"settings": {"silent": True}})
data = {"x": np.ones((32, 2), np.float32), "y": np.ones((32, 1), np.float32)}
trainer.fit(data, batch_size=4, sink_size=1, callbacks=[LambdaCallback(on_train_step_end=kill), logger, CSVLogger()])
print("trained", trainer.state.progress.global_step, trainer.state.stop_reason.kind, flush=True)
os._exit(0)  # wandb's own handlers at exit wait for the process that is gone
"""


@pytest.mark.long
@pytest.mark.process
def test_the_process_of_weights_and_biases_may_die(tmp_path):
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}  # no process of others
    done = subprocess.run(
        [sys.executable, "-c", DYING], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300
    )
    assert "trained 8 limit" in done.stdout, done.stderr
    assert done.stderr.count("cannot report") == 1
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 8, "another logger has every point"


class Notes(Logger):
    def open(self, trainer, step):
        self.snapshots = []

    def log_metrics(self, values, step):
        pass

    def log_snapshot(self, path, step):
        self.snapshots.append((path.name, step))


def test_a_snapshot_is_logged_under_its_own_step_though_later_ones_are_trained_meanwhile(fit, tmp_path):
    notes = Notes()

    def save(trainer):
        if trainer.state.progress.global_step == 3:
            trainer.save(tmp_path / "c", background=True)

    fit(LambdaCallback(on_checkpoint=save), notes, epochs=1, valid=False)
    assert notes.snapshots == [("step_00000003", 3)]
    assert fit.trainer.state.progress.global_step == 8


def test_a_logger_that_cannot_begin_leaves_the_run_alone(fit, caplog):
    class Unopened(Notes):
        def open(self, trainer, step):
            raise OSError("no server")

    trainer = fit(Unopened(), epochs=1)
    assert trainer.state.progress.global_step == 8
    assert "cannot report (no server)" in caplog.text


STARTED = """
import sys, types
from callbacks import MLflowLogger
trainer, logger = types.SimpleNamespace(run_dir=None), MLflowLogger(tracking_uri=sys.argv[1])
logger.setup(trainer)
logger.open(trainer, 0)
logger.close()
print(logger.run_id)
"""


@pytest.mark.long
def test_runs_that_begin_together_share_a_new_database(tmp_path):
    """As the trials of a sweep do: MLflow's own creation of the tables fails in all of them but one."""
    command = [sys.executable, "-c", STARTED, f"sqlite:///{tmp_path / 'all.db'}"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    ids = [process.communicate(timeout=120)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len({*ids} - {"None"}) == 3

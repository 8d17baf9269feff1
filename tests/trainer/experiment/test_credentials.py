"""Credentials of a configuration: looked up when objects are made, in no file and no line that leaves the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.experiment.cli import main
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.configuration.problems import ConfigErrors

SECRET = "pa55word-of-the-credentials-test"
STREAM = """
import logging
import numpy as np

SEEN = []


def rows(url: str, port: int, config: dict):
    SEEN.append((url, port, config))
    logging.getLogger("trainer.streams").warning("connecting to %s with %s", url, config)
    if port == 1:
        raise RuntimeError(f"cannot connect to {url}: wrong password {config}")
    rng = np.random.default_rng(0)
    return [{"x": rng.random((4, 3), np.float32), "label": np.zeros((4, 1), np.float32)} for _ in range(3)]
"""
CONFIG = """\
experiment: credentials
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.SGD, init_args: {learning_rate: 0.1}}
data:
  stream:
    class_path: stream_of_the_credentials_test.rows
    init_args:
      url: URL
      port: PORT
      config:
        sasl.password: PASSWORD
        client.id: me
callbacks:
  - callbacks.ModelCheckpoint
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that writes the configuration with other values and returns its path."""
    (tmp_path / "stream_of_the_credentials_test.py").write_text(STREAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PW_OF_THE_TEST", SECRET)
    monkeypatch.setenv("PORT_OF_THE_TEST", "6379")

    def write(url, port, password):
        text = CONFIG.replace("URL", url).replace("PORT", port).replace("PASSWORD", password)
        Path("stream.yaml").write_text(text)
        return "stream.yaml"

    return write


def everything_written(folder=Path()):
    return b"".join(p.read_bytes() for p in Path(folder).rglob("*") if p.is_file() and p.suffix != ".pyc")


def test_references_are_resolved_when_the_object_is_made_and_written_nowhere(project, capfd):
    path = project("redis://:${env:PW_OF_THE_TEST}@host/0", "${env:PORT_OF_THE_TEST}", "${env:PW_OF_THE_TEST}")
    assert main(["check", path]) == 0
    assert main(["online", path]) == 0
    import stream_of_the_credentials_test as stream

    config = {"sasl.password": SECRET, "client.id": "me"}
    assert stream.SEEN[-1] == (f"redis://:{SECRET}@host/0", 6379, config)
    out = "".join(capfd.readouterr())
    assert "connecting to redis://***@host/0" in out
    assert SECRET not in out
    assert SECRET.encode() not in everything_written()
    assert "${env:PW_OF_THE_TEST}" in Path("runs/credentials/config.yaml").read_text()
    assert main(["online", "--resume", "runs/credentials"]) == 0


def test_a_credential_written_out_is_masked_everywhere_and_asked_for_again(project, capfd):
    path = project(f"'redis://host/0?password={SECRET}'", "2", SECRET)
    assert main(["online", path, "--set", f"data.stream.init_args.config={{sasl.password: {SECRET}}}"]) == 0
    Path(path).unlink()
    said = "".join(capfd.readouterr())
    assert "${env:NAME}" in said
    assert main(["online", "--resume", "runs/credentials"]) == 2
    said += "".join(capfd.readouterr())
    assert "--set data.stream.init_args.url=VALUE" in said
    assert "data.stream.init_args.config.sasl.password: was a credential" in said
    assert SECRET not in said
    assert SECRET.encode() not in everything_written()


def test_errors_of_the_configuration_and_of_the_object_show_no_credential(project, capfd):
    path = project(f"redis://:{SECRET}@host/0", "one", SECRET)
    assert main(["check", path]) == 2
    assert main(["check", path, "--set", f"fit.password={SECRET}", "--set", f"metrics={{api_key: {SECRET}}}"]) == 2
    assert main(["check", path, "--set", f"network.init_args.password={SECRET}"]) == 2
    assert main(["online", path, "--set", "data.stream.init_args.port=1"]) == 2
    said = "".join(capfd.readouterr())
    assert "cannot connect to redis://***@host/0" in said
    assert SECRET not in said


def test_a_variable_that_is_not_set_or_does_not_fit_is_named(project, capfd, monkeypatch):
    path = project("x", "${env:PORT_OF_THE_TEST}", "${env:PW_OF_THE_TEST}")
    monkeypatch.setenv("PORT_OF_THE_TEST", "many")
    assert main(["online", path]) == 2
    assert "port: the value of ${env:PORT_OF_THE_TEST} does not fit; accepts a whole number" in capfd.readouterr().err
    monkeypatch.delenv("PORT_OF_THE_TEST")
    assert main(["online", path]) == 2
    assert (
        "stream.yaml:7:17: data.stream: ${env:PORT_OF_THE_TEST}: the environment variable PORT_OF_THE_TEST is not set"
        in capfd.readouterr().err
    )
    assert not os.path.exists("runs")
    for wrong in ("${env:}", "${env:a b}"):
        with pytest.raises(ConfigErrors, match="names no environment variable"):
            load_config(project(f"'{wrong}'", "1", "x"))


FAILING = """
import numpy as np
from callbacks import Callback


class Reach(Callback):
    def __init__(self, url: str):
        self.url = url

    def on_train_step_end(self, trainer):
        raise ValueError(f"cannot log in as {self.url.split(':')[2].split('@')[0]}")


def rows():
    return [{"x": np.zeros((4, 3), np.float32), "label": np.zeros((4, 1), np.float32)}] * 3
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("written", [SECRET, "${env:PW_OF_THE_TEST}"], ids=["written out", "referred to"])
def test_a_failure_of_the_users_own_code_shows_no_credential_either(written, project, monkeypatch):
    """It prints the password by itself: known from a URL of the configuration, it is masked everywhere."""
    Path("reach_of_the_credentials_test.py").write_text(FAILING)
    text = Path(project("x", "2", "unused")).read_text()
    text = text[: text.index("data:")] + (
        "data: {stream: {class_path: reach_of_the_credentials_test.rows}}\ncallbacks:\n"
        f"  - {{class_path: callbacks.TensorBoard, init_args: {{hparams: {{url: 'a://b:{written}@c'}}}}}}\n"
        f"  - {{class_path: reach_of_the_credentials_test.Reach, init_args: {{url: 'db://me:{written}@host'}}}}\n"
    )
    Path("stream.yaml").write_text(text)
    command = [sys.executable, "-m", "trainer", "online", "stream.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ended.returncode, "ValueError: cannot log in as ***" in ended.stderr) == (1, True), ended.stderr
    Path("stream.yaml").unlink()
    assert SECRET not in ended.stdout + ended.stderr
    assert SECRET.encode() not in everything_written()

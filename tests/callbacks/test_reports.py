"""What only reports does not end a run that can do without it."""

import contextlib
import json
import resource

import pytest

from callbacks import JSONLinesLogger, LambdaCallback, LossMonitor, ModelCheckpoint, ProgressBar, TensorBoard
from callbacks.loggers import tensorboard
from trainer.cadence import Every
from trainer.errors import ConfigurationError

from .test_tensorboard import read


def test_a_full_disk_ends_no_run_and_reports_go_on_afterwards(fit, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tensorboard, "FLUSH_BYTES", 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(trainer):  # a limit of the size of files fails as a full disk does, for every file
        full = 4 <= trainer.state.progress.global_step < 8
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]) if full else limit)

    reports = [TensorBoard(tmp_path / "tb", every=1)]
    try:
        trainer = fit(LambdaCallback(order=-1, on_train_step_end=fill), *reports, epochs=2, valid=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert trainer.state.progress.global_step == 16
    assert [text.split(" ")[0] for text in caplog.messages if "cannot report" in text] == ["TensorBoard"]
    assert {*range(1, 4), *range(8, 17)} <= set(read(tmp_path / "tb")["train/loss"])


@pytest.mark.parametrize("report", [ProgressBar, lambda: LossMonitor(1)], ids=["progress bar", "loss monitor"])
def test_an_output_that_is_gone_ends_no_run(report, fit, monkeypatch, caplog):
    # closing it fails as well
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as gone:
        monkeypatch.setattr("sys.stdout", gone)
        monkeypatch.setattr("sys.stderr", gone)
        fit(report(), valid=False)
    assert fit.trainer.state.stop_reason.kind == "limit"
    assert caplog.text.count("cannot report") == 1


@pytest.mark.parametrize("report", [JSONLinesLogger, TensorBoard])
def test_a_folder_that_cannot_be_is_refused_before_the_first_step(report, fit, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file.* cannot be written: (Not a directory|File exists)"):
        fit(report(tmp_path / "file" / "x.json"))
    assert fit.trainer.state.progress.global_step == 0


def test_event_files_are_read_in_the_order_of_writing_though_the_clock_goes_back(tmp_path, monkeypatch):
    for now in (2_000_000_000, 1_000_000_000):
        monkeypatch.setattr("time.time", lambda now=now: now)
        file = tensorboard.EventFile(tmp_path)
        file.scalar("now", now, 1)
        file.close()
    first, second = sorted(tmp_path.iterdir())
    assert first.stat().st_mtime_ns < second.stat().st_mtime_ns


def test_cadences_and_retention_do_not_mind_a_clock_that_goes_back(fit, tmp_path, monkeypatch):
    step_back = LambdaCallback(
        order=-1,
        on_train_step_end=lambda t: t.state.progress.global_step == 4 and monkeypatch.setattr("time.time", lambda: 1e9),
    )
    log = JSONLinesLogger(tmp_path / "log.jsonl", every=Every(seconds=1e-6))
    saving = ModelCheckpoint(tmp_path / "c", every=Every(seconds=1e-6), keep_last=2)
    fit(step_back, log, saving, epochs=1, valid=False)
    lines = map(json.loads, log.path.read_text().splitlines())
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 9))
    assert sorted(path.name for path in (tmp_path / "c").glob("step_*")) == ["step_00000007", "step_00000008"]

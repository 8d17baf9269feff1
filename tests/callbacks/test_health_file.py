import json

import pytest

from callbacks import HealthFile, LambdaCallback, ModelCheckpoint


def test_the_health_file_says_how_the_run_is_doing(online, tmp_path):
    path, seen = tmp_path / "health" / "run.json", []
    watch = LambdaCallback(order=200, on_train_step_end=lambda t: seen.append(json.loads(path.read_text())))
    windows = [{"window_auc": 0.7, "lag": 30}, {"window_auc": float("nan"), "lag": 20}] * 3
    online(windows, watch, HealthFile(path, every=1), ModelCheckpoint(every=4))
    assert [report["last_step"] for report in seen] == [1, 2, 3, 4, 5, 6]
    assert (seen[0]["status"], seen[0]["auc"], seen[0]["lag"]) == ("running", 0.7, 30)
    assert seen[1]["auc"] is None
    assert seen[5]["last_snapshot"].endswith("step_00000004")
    last = json.loads(path.read_text())
    assert (last["status"], last["stop_reason"].split(":")[0]) == ("ended", "stream_end")
    assert last["samples_per_second"] == seen[5]["samples_per_second"] > 0  # the end brings no new rows
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_the_health_file_of_a_failed_run_says_why(fit, tmp_path):
    with pytest.raises(OSError, match="disk"):
        fit(HealthFile(tmp_path / "h.json"), fail_at=2)
    report = json.loads((tmp_path / "h.json").read_text())
    assert (report["status"], report["exception"]) == ("failed", "OSError: the disk is gone")

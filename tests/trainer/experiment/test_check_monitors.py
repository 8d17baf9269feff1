"""`trainer check` names a monitored metric that `fit` would not produce."""

from __future__ import annotations

import pytest

from trainer.experiment.cli import main

CONFIG = """\
experiment: visits
features: {{columns: [{{kind: numeric, name: age}}], label: click}}
network: {{model: lr}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {{class_path: mindspore.nn.Adam, init_args: {{learning_rate: 3e-2}}}}
metrics: {metrics}
data:
  train: {{class_path: trainer.features.RawFiles, init_args: {{path: visits.csv}}}}
{more}
callbacks:
  - {{class_path: callbacks.EarlyStopping, init_args: {{monitor: {monitor}}}}}
"""
VALID = "  valid: {class_path: trainer.features.RawFiles, init_args: {path: visits.csv}}"
STREAM = f"{VALID}\n  stream: {{class_path: trainer.streams.FileStream, init_args: {{path: visits.csv}}}}"


@pytest.mark.parametrize(
    ("metrics", "more", "monitor", "words"),
    [
        ("[auc, log_loss]", VALID, "val_logloss", "did you mean 'val_log_loss'?"),
        ("[accuracy]", VALID, "val_auc", "available are loss, val_loss, val_accuracy"),
        ("[auc]", VALID, "window_auc", "available are loss, val_loss, val_auc"),
        ("[auc]", STREAM, "vla_auc", "did you mean 'val_auc'?"),
        ("[auc]", "", "val_auc", "it comes from validation, and no valid_dataset was given"),
        ("[auc]", VALID, "val_auc", None),
        ("[auc]", VALID, "loss", None),
        ("[auc]", STREAM, "window_auc", None),  # of `online`
        ("[auc]", STREAM, "lag", None),
        ("[auc]", VALID.replace("trainer.features.RawFiles", "rows_of_the_monitor_test.rows"), "val_old_auc", None),
    ],
)
def test_a_monitor_is_one_that_fit_produces(tmp_path, monkeypatch, capsys, metrics, more, monitor, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.csv").write_text("age,click\n30,1\n40,0\n")
    (tmp_path / "rows_of_the_monitor_test.py").write_text("def rows(path):\n    return {'old': {}, 'new': {}}\n")
    (tmp_path / "visits.yaml").write_text(CONFIG.format(metrics=metrics, more=more, monitor=monitor))
    code = main(["check", "visits.yaml"])
    err = capsys.readouterr().err
    assert code == (0 if words is None else 2), err
    if words is not None:
        assert f"EarlyStopping(monitor={monitor!r}): no metric of that name is produced" in err
        assert words in err
        assert "callbacks.0.init_args.monitor" in err

"""What a notebook shows of a run and of a trainer, parsed as HTML."""

from xml.etree import ElementTree

import numpy as np

from callbacks import History, ModelCheckpoint, RunRecord
from trainer.experiment.runs.compare import Tables
from trainer.features import Categorical, Features, Numeric
from trainer.state import Predictions


def parsed(markup):
    return ElementTree.fromstring(markup)


def cells(markup):
    return ["".join(cell.itertext()) for cell in parsed(markup).iter("td")]


def test_a_history_is_a_table_of_its_metrics_with_curves(fit):
    trainer = fit(ModelCheckpoint(monitor="val_auc"), epochs=3)
    markup = trainer.history._repr_html_()
    best = trainer.history.best["val_auc"]
    row = cells(markup)[cells(markup).index("val_auc") :][:5]
    last = trainer.history.history["val_auc"][-1]
    assert row == ["val_auc", f"{last:.4g}", f"{best.value:.4g}", str(best.step), best.snapshot]
    (points,) = [
        line.get("points").split()
        for picture in parsed(markup).iter("svg")
        if picture.get("aria-label") == "val_auc over optimizer steps"
        for line in picture.iter("polyline")
    ]
    assert len(points) == 3
    assert "epochs 1 to 3; ended by limit: epochs=3" in "".join(parsed(markup).itertext())


def test_what_a_run_does_not_have_takes_no_room(fit):
    def shown(*callbacks):
        markup = fit(*callbacks, epochs=2).history._repr_html_()
        return [*("".join(head.itertext()) for head in parsed(markup).iter("th")), *cells(markup)]

    usual = shown()  # 16 steps: the curve, a point at every fiftieth, is coarser than the epochs
    assert "snapshot" not in usual
    assert "loss of single steps" not in usual
    assert "snapshot" in shown(ModelCheckpoint())
    assert "loss of single steps" in shown(History(every=4))


def test_epochs_of_a_second_fit_are_explained(fit):
    fit(epochs=2)
    again = fit(fresh=False, epochs=2)
    text = "".join(parsed(again.history._repr_html_()).itertext())
    assert "epochs 3 to 4 (a second fit counts on: 2 were trained before)" in text


def test_a_trainer_shows_layers_parameters_precision_and_sink(fit):
    trainer = fit(epochs=1)
    shown = cells(trainer._repr_html_())
    assert shown[:6] == ["0", "Dense", "248", "1", "ReLU", "0"]
    assert shown[shown.index("parameters") + 1] == "257"
    assert shown[shown.index("precision") + 1] == "O0"
    assert shown[shown.index("sink") + 1] == trainer.sink_mode
    assert shown[shown.index("optimizer") + 1] == "Adam"


def test_a_state_shows_counters_metrics_and_why_it_ended(fit):
    trainer = fit(epochs=2)
    shown = cells(trainer.state._repr_html_())
    facts = dict(zip(shown[::2], shown[1::2], strict=True))
    assert facts["optimizer steps"] == "16"
    assert facts["rows"] == "1,024"
    assert facts["val_auc"] == f"{trainer.state.metrics['val_auc']:.4g}"
    assert facts["ended by"] == "limit: epochs=2"
    assert "exception" not in facts


def test_results_of_an_evaluation_are_a_dict_and_a_table(fit, cancer):
    results = fit(epochs=1).evaluate(cancer["valid"], batch_size=64)
    assert results == dict(results)
    assert cells(results._repr_html_()) == ["loss", f"{results['loss']:.4g}", "auc", f"{results['auc']:.4g}"]


def test_features_and_predictions_with_columns_are_tables():
    features = Features([Numeric("price", normalize="standard"), Categorical("site")], label="y", keep=["name<b>"])
    assert "not yet" in features._repr_html_()
    rows = {"price": [1.0, 2.0] * 10, "site": ["a", "b"] * 10, "y": [0, 1] * 10, "name<b>": ["<i>", "z"] * 10}
    features.fit(rows)
    shown = cells(features._repr_html_())
    assert shown[shown.index("price") : shown.index("price") + 2] == ["price", "Numeric"]
    assert shown[shown.index("site") + 1] == "Categorical"
    assert shown[shown.index("learned") + 1] == "yes"


def test_predictions_show_their_first_rows():
    predictions = Predictions({"prediction": np.arange(12.0)[:, None], "name": ["<i>"] * 12})
    markup = predictions._repr_html_()
    assert "12 rows, the first 10" in markup
    assert cells(markup)[:4] == ["0", "<i>", "1", "<i>"]
    assert len(cells(markup)) == 20


def test_tables_of_runs_are_shown_in_a_fixed_width_font():
    assert Tables("a < b")._repr_html_() == '<pre style="overflow-x:auto">a &lt; b</pre>'


def test_a_record_says_where_it_is(fit, tmp_path):
    fit(record := RunRecord(), epochs=1)
    shown = cells(record._repr_html_())
    assert shown[1] == str(tmp_path / "record.jsonl")
    assert "until the first step" in shown

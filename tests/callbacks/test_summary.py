"""What a notebook shows of a run and of a trainer, parsed as HTML."""

from xml.etree import ElementTree

from callbacks import History, ModelCheckpoint
from callbacks.output import format_metrics


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
    assert "epochs 3 to 4 (a second fit continues the count: 2 were trained before)" in text


def test_a_trainer_shows_layers_parameters_precision_and_sink(fit):
    trainer = fit(epochs=1)
    shown = cells(trainer._repr_html_())
    assert shown[:6] == ["0", "Dense", "248", "1", "ReLU", "0"]
    assert shown[shown.index("parameters") + 1] == "257"
    assert shown[shown.index("precision") + 1] == "O0"
    assert shown[shown.index("sink") + 1] == trainer.sink_mode
    assert shown[shown.index("optimizer") + 1] == "Adam"


def test_large_numbers_have_no_exponent():
    metrics = {
        "rmse": 27087.3,
        "mae": 1234.5,
        "mse": 7.337e8,
        "auc": 0.78125,
        "learning_rate": 1.2e-5,
        "loss": float("nan"),
    }
    assert format_metrics(metrics) == (
        "rmse 27087, mae 1234, mse 733700000, auc 0.7812, learning_rate 1.2e-05, loss nan"
    )

import pytest

from callbacks import (
    DriftMonitor,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateMonitor,
    LossMonitor,
    ModelCheckpoint,
    ProgressBar,
    PrometheusMonitor,
    ReduceLROnPlateau,
    SkipNonFinite,
    TensorBoard,
    TerminateOnNaN,
    adapt,
)
from trainer.checks import require
from trainer.errors import ConfigurationError
from trainer.features import Cross, ListFeature
from trainer.metrics.drift import PageHinkley

WRONG = [
    (lambda: LossMonitor("often"), "LossMonitor(every=...) takes an Every, a whole number of optimizer steps"),
    (lambda: LossMonitor(0), "LossMonitor(every=...) takes a whole number >= 1; received 0"),
    (lambda: LossMonitor(True), "received True"),
    (lambda: EarlyStopping("val_loss", mode="mim"), "'auto', 'min', 'max'; received 'mim'; did you mean 'min'?"),
    (lambda: EarlyStopping(patience=-1), "EarlyStopping(patience=...) takes a whole number >= 0; received -1"),
    (lambda: EarlyStopping(min_delta=-1), "EarlyStopping(min_delta=...) takes a number >= 0; received -1"),
    (lambda: EarlyStopping(monitor=None), "EarlyStopping(monitor=...) takes the name of a metric"),
    (lambda: ReduceLROnPlateau(factor=1.5), "takes a number in (0, 1); received 1.5"),
    (lambda: ReduceLROnPlateau(factor=0), "takes a number in (0, 1); received 0"),
    (lambda: ModelCheckpoint("x", every="windows"), "received 'windows'; did you mean 'window'?"),
    (lambda: ModelCheckpoint("x", keep_last=0), "takes a whole number >= 1 or None; received 0"),
    (lambda: History(max_points=1), "History(max_points=...) takes a whole number >= 2; received 1"),
    (lambda: LambdaCallback(on_epoch_begin=print), "no hook 'on_epoch_begin'; did you mean 'on_train_epoch_begin'?"),
    (lambda: LambdaCallback(on_train_end=3), "LambdaCallback(on_train_end=...) takes a function"),
    (lambda: TerminateOnNaN(every=0.5), "TerminateOnNaN(every=...) takes"),
    (lambda: SkipNonFinite(max_consecutive=0), "SkipNonFinite(max_consecutive=...)"),
    (lambda: ProgressBar(refresh_seconds="fast"), "ProgressBar(refresh_seconds=...) takes a number >= 0"),
    (lambda: LearningRateMonitor(every=-1), "LearningRateMonitor(every=...)"),
    (lambda: TensorBoard(hparams=[1]), "TensorBoard(hparams=...) takes a mapping"),
    (lambda: PrometheusMonitor(port=70000), "takes a whole number from 0 to 65535; received 70000"),
    (lambda: PrometheusMonitor(namespace="a-b"), "received 'a-b'"),
    (lambda: DriftMonitor(detector=3), "takes an object with update(value) -> bool; received 3"),
    (
        lambda: DriftMonitor(PageHinkley(), key=""),
        "DriftMonitor(key=...) takes the name of a window metric; received ''",
    ),
    (lambda: DriftMonitor(feature=3), "DriftMonitor(feature=...) takes the name of a declared feature; received 3"),
    (lambda: ListFeature("a", sequence=""), "(sequence=...) takes the name of a sequence, or None; received ''"),
    (lambda: ListFeature("", sequence="s"), "ListFeature(name=...) takes a non-empty text; received ''"),
    (lambda: Cross("a", columns=("b", "c"), elements="b", separator=1), "takes a text, or None; received 1"),
    (lambda: adapt(LossMonitor), "give an instance, not the class"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_argument_is_refused_with_what_was_received_and_what_is_accepted(make, message):
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert message in str(raised.value)


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    with pytest.raises(ConfigurationError, match=r"^Charts need plots: pip install 'mindspore-trainer\[plot\]'$"):
        require("no_such_package.plots", "Charts need plots", "plot")

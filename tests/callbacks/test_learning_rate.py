import pytest

from callbacks import LambdaCallback, LearningRateMonitor, ReduceLROnPlateau


def plateau(trainer):
    trainer.state.metrics["val_loss"] = 1.0


def test_reduces_the_rate_of_the_optimizer_after_patience_and_cooldown(driver):
    monitor = LearningRateMonitor(every=8)
    reduce = ReduceLROnPlateau("val_loss", factor=0.5, patience=1, cooldown=1, min_lr=0.004)
    trainer = driver(LambdaCallback(on_eval_end=plateau), monitor, reduce)
    trainer.fit(epochs=5)
    # Epoch 1 sets the best, 2 reduces, 3 cools and reduces again, down to min_lr.
    assert trainer.learning_rate == pytest.approx(0.004)
    assert monitor.curve.steps == [0, 8, 16, 24, 32, 40]
    assert monitor.curve.values[:3] == pytest.approx([0.01, 0.01, 0.01])
    assert monitor.curve.values[3] == pytest.approx(0.005)


def test_the_reduced_rate_is_the_one_that_trains(driver):
    trainer = driver(LambdaCallback(on_eval_end=plateau), ReduceLROnPlateau("val_loss", factor=1e-9, patience=1))
    trainer.fit(epochs=2)
    before = trainer.network[0].weight.asnumpy().copy()
    trainer.fit(epochs=3)
    assert abs(trainer.network[0].weight.asnumpy() - before).max() < 1e-6


def test_a_rate_that_cannot_be_set_is_refused_before_training(driver):
    trainer = driver(ReduceLROnPlateau())
    type(trainer).learning_rate, kept = property(lambda self: None), type(trainer).learning_rate
    try:
        with pytest.raises(ValueError, match="ReduceLROnPlateau needs an optimizer with a constant learning rate"):
            trainer.fit()
    finally:
        type(trainer).learning_rate = kept
    assert trainer.state.progress.global_step == 0


def test_a_change_of_the_rate_is_said_once(driver, capsys):
    driver(LearningRateMonitor(every=2, verbose=True)).fit(epochs=1, valid=False)
    assert capsys.readouterr().out == "step 0: learning rate 0.01\n"

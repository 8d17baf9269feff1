import pytest
from mindspore import experimental, nn

from callbacks import (
    EarlyStopping,
    LambdaCallback,
    LearningRateMonitor,
    LRFinder,
    ModelCheckpoint,
    ReduceLROnPlateau,
)
from callbacks.watched import Patience
from trainer.errors import GraphError
from trainer.trainer import Trainer


def plateau(trainer):
    trainer.state.metrics["val_loss"] = 1.0


def test_reduces_the_rate_of_the_optimizer_after_patience_and_cooldown(fit):
    monitor = LearningRateMonitor(every=8)
    reduce = ReduceLROnPlateau("val_loss", factor=0.5, patience=1, cooldown=1, min_lr=0.004)
    trainer = fit(LambdaCallback(on_eval_end=plateau), monitor, reduce, epochs=5)
    # Epoch 1 sets the best, 2 reduces, 3 cools, 4 reduces to min_lr; each shows from the next epoch on.
    assert trainer.learning_rate == pytest.approx(0.004)
    assert monitor.curve.steps == [0, 8, 16, 24, 32, 40]
    assert monitor.curve.values == pytest.approx([0.01, 0.01, 0.01, 0.005, 0.005, 0.004])


def test_the_reduced_rate_is_the_one_that_trains(fit):
    trainer = fit(LambdaCallback(on_eval_end=plateau), ReduceLROnPlateau("val_loss", factor=1e-9, patience=1))
    before = trainer.network[0].weight.asnumpy().copy()
    fit(epochs=1, fresh=False)
    assert abs(trainer.network[0].weight.asnumpy() - before).max() < 1e-6


def test_the_cooldown_and_the_patience_used_up_survive_a_resume(fit):
    first = ReduceLROnPlateau("val_loss", factor=0.5, patience=2, cooldown=2)
    fit(LambdaCallback(on_eval_end=plateau), first, epochs=3)
    state = {"monitor": "val_loss", "best": 1.0, "best_step": 8, "wait": 0, "cooling": 2}
    assert first.state_dict() == state
    second = ReduceLROnPlateau("val_loss", factor=0.5, patience=2, cooldown=2)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()


def test_what_waits_for_an_improvement_is_one_class():
    own = {"setup", "on_eval_end", "on_window_end", "on_train_epoch_end", "_measure"}
    assert issubclass(EarlyStopping, Patience)
    assert issubclass(ReduceLROnPlateau, Patience)
    assert own & vars(EarlyStopping).keys() == {"_measure"}  # which leaves the first epochs out
    assert own & vars(ReduceLROnPlateau).keys() == {"setup"}


def test_a_rate_that_cannot_be_set_is_refused_before_training(cancer):
    network = nn.SequentialCell(nn.Dense(30, 1))
    schedule = nn.CosineDecayLR(0.001, 0.01, 10)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), learning_rate=schedule))
    with pytest.raises(ValueError, match="Adam has no constant learning rate to set"):
        trainer.fit(cancer["train"], batch_size=64, callbacks=ReduceLROnPlateau("loss"))
    assert trainer.state.progress.global_step == 0


def test_a_change_of_the_rate_is_logged_once(fit, capsys):
    fit(LearningRateMonitor(every=2, verbose=True), epochs=1, valid=False)
    assert capsys.readouterr().out == "step 0: learning rate 0.01\n"


def grouped(kind, first, second=0.01):
    network = nn.SequentialCell(nn.Dense(30, 4), nn.Dense(4, 1))
    groups = [{"params": network[0].trainable_params(), "lr": first}, {"params": network[1].trainable_params()}]
    if kind is list:
        optimizer = [nn.SGD(network[0].trainable_params(), first), nn.Adam(network[1].trainable_params(), second)]
    else:
        optimizer = kind(groups, second)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer)


@pytest.mark.parametrize("kind", [nn.SGD, experimental.optim.SGD, list], ids=["nn", "experimental", "two optimizers"])
def test_groups_keep_their_own_rates(kind, cancer):
    trainer = grouped(kind, 0.25)
    options = {"epochs": 9, "batch_size": 512, "sink_size": 1, "valid_dataset": cancer["valid"]}
    trainer.fit(cancer["train"], callbacks=[LRFinder(steps=10)], **options)
    assert sorted(set(trainer.learning_rates)) == pytest.approx([0.01, 0.25])
    plateaus = [LambdaCallback(on_eval_end=plateau), ReduceLROnPlateau(factor=0.5, patience=1)]
    trainer.fit(cancer["train"], callbacks=plateaus, **(options | {"epochs": 3}))
    assert sorted(set(trainer.learning_rates)) == pytest.approx([0.0025, 0.0625])


@pytest.mark.parametrize("rate", [nn.CosineDecayLR(0.001, 0.25, 10), [0.25, 0.125]], ids=["schedule", "list"])
def test_the_rate_of_a_group_that_follows_a_schedule_is_recorded(rate, cancer):
    trainer, monitor = grouped(nn.SGD, rate, 0.01 if isinstance(rate, nn.Cell) else [0.01, 0.01]), LearningRateMonitor()
    trainer.fit(cancer["train"], batch_size=512, callbacks=[monitor])
    assert monitor.curve.values == [0.25]
    with pytest.raises(ValueError, match="SGD has no constant learning rate to set"):
        trainer.fit(cancer["train"], batch_size=512, callbacks=[ReduceLROnPlateau("loss")])


def test_a_list_of_rates_ends_with_the_last_update(cancer):
    network = nn.Dense(30, 1)
    optimizer = nn.SGD(network.trainable_params(), [0.5, 0.25, 0.125, 0.0625])
    trainer, monitor = Trainer(network, nn.BCEWithLogitsLoss(), optimizer), LearningRateMonitor(every=1)
    trainer.fit(cancer["train"], batch_size=128, callbacks=[monitor])
    assert monitor.curve.values == [0.5, 0.25, 0.125, 0.0625, 0.0625]
    with pytest.raises(GraphError, match=r"list of 4 learning rates has ended.* one rate for each update"):
        trainer.fit(cancer["train"], batch_size=128, callbacks=[])


@pytest.mark.parametrize("verb", ["resume", "rollback"])
@pytest.mark.parametrize("optimizer", [nn.SGD, experimental.optim.SGD], ids=["nn", "experimental"])
def test_a_reduced_rate_is_in_snapshots(verb, optimizer, cancer, tmp_path):
    def make():
        network = nn.Dense(30, 1)
        return Trainer(network, nn.BCEWithLogitsLoss(), optimizer(network.trainable_params(), 0.5))

    trainer = make()
    trainer.learning_rate = 0.25
    trainer.save(tmp_path)
    if verb == "rollback":
        trainer.learning_rate = 0.125
        trainer.rollback()
    else:
        trainer = make()
        trainer.fit(cancer["train"], epochs=1, batch_size=512, callbacks=[], resume=tmp_path)
    assert trainer.learning_rate == 0.25


def test_the_record_of_a_resumed_run_is_that_of_an_uninterrupted_one(fit, tmp_path):
    def record(**options):
        monitor = LearningRateMonitor(every=1)
        fit(monitor, ModelCheckpoint(tmp_path / "saved"), valid=False, **options)
        return monitor.state_dict()

    whole = record(epochs=2)
    record(epochs=1)
    assert record(epochs=2, resume=tmp_path / "saved" / "step_00000008") == whole

import pytest

from callbacks import LambdaCallback


def test_functions_are_called_at_their_hooks(fit):
    seen = []
    fit(
        LambdaCallback(
            on_train_begin=lambda trainer: seen.append("begin"),
            on_train_epoch_end=lambda trainer: seen.append(trainer.state.progress.epoch),
        ),
        epochs=2,
        valid=False,
    )
    assert seen == ["begin", 1, 2]


def test_a_misspelt_hook_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="on_train_step_end"):
        LambdaCallback(on_train_step_ends=print)

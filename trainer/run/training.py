"""Implements `Trainer.fit` and `Trainer.compile`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import History

from .. import checks
from ..cadence import Every
from ..data.feed import Feed
from ..data.user_data import RAW_BATCH_SIZE, Form, UserData, named_sets
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import ConfigurationError, DataError
from ..mindspore_internals.pipelines import current_seed
from ..state import Phase
from . import declared_features
from .call import call, check_idle, make_callbacks, only_thread
from .cursor import Cursor
from .feeds import ALL_BATCHES, evaluation_feed, first_chunk, run_options, step_marks, training_feed
from .inference import evaluate_feed, try_metrics
from .limits import Trial
from .run import stop_hooks, train

if TYPE_CHECKING:
    from .trainer_base import TrainerBase


def fit(
    trainer: TrainerBase,
    train_dataset: Any,
    epochs: int,
    valid_dataset: Any,
    valid_every: Every | int | None,
    callbacks: Any,
    steps_per_call: int | None,
    *,
    batch_size: int | None = None,
    shuffle: bool = True,
    sharded: bool | None = None,
    valid_sharded: bool | None = None,
    valid_on_start: bool = False,
    resume: str | Path | None = None,
    trial: Trial = ALL_BATCHES,
    first_epoch: int = 0,
    **limits: Any,
) -> History:
    """Implement `Trainer.fit`; callbacks count epochs from `first_epoch`.

    `limits` are the arguments `max_steps` and `max_seconds`.
    """
    if isinstance(train_dataset, int):
        raise DataError(
            f"fit takes the data first and the epochs second; received {train_dataset!r} as the data. "
            "`trainer.Model` takes the arguments of mindspore.Model.fit in its order"
        )
    checks.epochs(epochs)
    check_idle(trainer)  # now, because what follows changes the counters of a run that is going on
    callbacks = trial.callbacks(callbacks)
    if trial.steps is not None:
        epochs, resume, valid_every = 1, None, None
    if valid_on_start and valid_dataset is None:
        raise ConfigurationError("fit(valid_on_start=True) validates on valid_dataset=..., which is not given")
    if trial.limit_valid_batches == 0:
        valid_dataset = None
    resume = declared_features.restore(trainer, resume, callbacks)
    train_data, valid_sets = UserData(train_dataset, trainer.features), named_sets(valid_dataset, trainer.features)
    trainer.state.trained_columns = train_data.column_names
    if train_data.form is Form.RAW:
        declared_features.check_labels(trainer.features, trainer.loss_fn)
        batch_size = batch_size or RAW_BATCH_SIZE
    takes_size = train_data.takes_batch_size or not any(data.takes_batch_size for data in valid_sets.values())
    source = train_data.train_source(
        trainer.group,
        stop_hooks(trainer),
        batch_size=batch_size if takes_size else None,  # otherwise it applies only to the validation sets
        shuffle=shuffle,
        seed=trainer.order_seed,
        sharded=sharded,
    )
    if trainer.calibrator is not None and not valid_sets:
        raise ConfigurationError("calibration learns from validation rows: give fit(valid_dataset=...)")
    with contextlib.ExitStack() as opened:
        valid = {}
        for name, data in valid_sets.items():
            size = batch_size if data.takes_batch_size else None
            valid[name] = evaluation_feed(trainer, data.in_order(train_data.column_names), size, trial, valid_sharded)
            opened.callback(valid[name].close)
        every = Every(valid_every) if isinstance(valid_every, int) else valid_every
        progress = trainer.state.progress
        progress.epoch, progress.step_in_epoch = max(progress.epoch, first_epoch), 0
        trainer.state.first_epoch = first_epoch
        # Each call repeats the order, as in MindSpore. Earlier epochs of a pipeline without a size cannot be skipped.
        has_no_size = source.dataset is not None and source.size is None
        if has_no_size or (not trainer.has_own_seed and current_seed() is not None):
            source.first_epoch = progress.epoch
        with call(trainer, Phase.FIT, callbacks) as signals, opened:  # `opened` closes while signals are still handled
            options = run_options(trainer.step_options, trainer.callbacks)
            marks = step_marks(trainer.callbacks, every).of_all(trainer.group)
            feed = training_feed(trainer, source, options, steps_per_call, trial, marks=marks)

            def try_validation() -> None:
                for valid_feed in valid.values():  # equal seeds: random parts of one dataset stay apart
                    if source.takes_seed and valid_feed.source.takes_seed:
                        valid_feed.source.seed = source.seed
                try_metrics(trainer, valid.values())

            train(
                trainer,
                feed,
                options,
                Cursor(source, progress, every, feed.options.filling, restore_seed=not trainer.has_own_seed),
                resume=resume,
                epochs=epochs,
                **limits,
                evaluate=(lambda: _validate(trainer, valid)) if valid else None,
                before_first_step=try_validation,
                valid_sets=tuple(valid),
                valid_on_start=valid_on_start and bool(valid),
                set_aside=lambda: source.set_aside,
            )
    signals.leave(complete=True)
    assert trainer.history is not None  # `call` set it
    return trainer.history


def _validate(trainer: TrainerBase, feeds: Mapping[str, Feed]) -> dict[str, float]:
    """Return the metrics as "<metric>" or "<set>_<metric>"; empty after a stop signal."""
    results: dict[str, float] = {}
    if trainer.calibrator is not None:
        trainer.calibrator.restart(forgets=False)  # the weights have changed since the last validation
    for name, feed in feeds.items():
        if not (values := evaluate_feed(trainer, feed, fit_calibration=True)):
            return {}
        results |= {f"{name}_{key}" if name else key: value for key, value in values.items()}
    return results


def compile_program(
    trainer: TrainerBase, sample: Any, callbacks: Any, steps_per_call: int | None, batch_size: int | None
) -> None:
    """Implement `Trainer.compile`."""
    source = UserData(sample, trainer.features).source(batch_size, seed=trainer.order_seed)
    if source.one_shot:
        raise ConfigurationError("compile: would use up the generator; pass a function that returns a fresh one")
    if any(not cell.is_dense for cell in embedding_cells(trainer.network)):
        raise ConfigurationError("compile: programs with sparse tables are compiled when the first ids are known")
    check_idle(trainer)
    with only_thread("compile"):
        later = make_callbacks(callbacks if callbacks is not None else [])[0]
        options = run_options(trainer.step_options, later)
        feed = training_feed(trainer, source, options, steps_per_call, marks=step_marks(later))
        with contextlib.closing(feed):
            chunk = first_chunk(feed)
        if chunk is None:
            raise DataError("compile: the dataset delivered no batches")
        trainer.builder.compile(options, chunk.batches_per_call, chunk)

"""The verbs of `mindspore.Model` and `RecModel` under their own names, so that a script changes only its import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callbacks import History
    from trainer.trainer import Trainer


class ModelVerbs:
    """`train` and `eval` as `mindspore.Model` has them."""

    def train(
        self: Trainer,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> History:
        """Train from epoch `initial_epoch` up to `epoch`; the same as `fit` otherwise."""
        if initial_epoch:
            self.state.progress.epoch = max(self.state.progress.epoch, initial_epoch)
        return self.fit(
            train_dataset,
            epoch - initial_epoch,
            callbacks=callbacks,
            dataset_sink_mode=dataset_sink_mode,
            sink_size=sink_size,
        )

    def eval(
        self: Trainer, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = True
    ) -> dict[str, float]:
        """The same as `evaluate`."""
        return self.evaluate(valid_dataset, callbacks, dataset_sink_mode)

"""A user's program, read by the type checker alone (`make lint`): its annotations must be what the packages declare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from mindspore import nn

from callbacks import CallbackList, LambdaCallback
from trainer import Callback, Every, History, ModelCheckpoint, Trainer, Window
from trainer.embedding import Embedding, RowAdagrad, RowOptimizer
from trainer.errors import ConfigurationError, TrainerError
from trainer.serving import Publish, ServedModel
from trainer.state import Phase, Progress, State, StopReason
from trainer.streams import Batch, ReplayStream, Stream


class Counting(Callback):
    order = 5

    def __init__(self) -> None:
        self.steps: int = 0

    def on_train_step_end(self, trainer: Trainer) -> None:
        self.steps = trainer.state.progress.global_step

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])


def verbs(net: nn.Cell, data: dict[str, np.ndarray[Any, Any]], folder: Path) -> None:
    trainer = Trainer(net, None, None, {"auc"}, amp_level="O2", clip_norm=1.0, seed=3, run_dir=folder)
    checkpoint = ModelCheckpoint(folder, every=Every(steps=10))
    assert_type(trainer.fit(data, 2, data, Every(epochs=1), [Counting(), checkpoint], batch_size=32), History)
    assert_type(trainer.evaluate(data, batch_size=32), dict[str, float])
    assert_type(trainer.state, State)
    assert_type(trainer.state.progress, Progress)
    assert_type(trainer.state.phase, Phase)
    assert_type(trainer.state.stop_reason, StopReason | None)
    assert_type(trainer.save(folder), Path)
    assert_type(trainer.learning_rate, float | None)
    assert_type(trainer.callbacks, CallbackList)


def streams(net: nn.Cell, data: dict[str, np.ndarray[Any, Any]], folder: Path) -> None:
    stream = ReplayStream(data, event_time="time")
    base: Stream = stream
    assert_type(base.poll(10, 1.0), Batch | None)
    callbacks: list[Callback] = [Publish(folder), LambdaCallback(on_window_end=print)]
    trainer = Trainer(net, None, lambda parameters: nn.Adam(parameters))
    assert_type(trainer.online_train(stream, callbacks, window=Window(rows=1000), sink_size=4), History)
    with ServedModel(folder) as model:
        assert_type(model, ServedModel)


def tables() -> RowOptimizer:
    Embedding(16, name="items")
    return RowAdagrad()


def errors(error: ConfigurationError) -> TrainerError:
    value: ValueError = error
    return error if value is error else TrainerError()

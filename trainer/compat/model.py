"""`Model` and `RecModel`: the trainer under the names of MindSpore's own, giving what they give.

    from trainer import Model            # instead of: from mindspore import Model
    from trainer import RecModel         # instead of: from mindspore_rec import RecModel

Every verb is the trainer's. Only `predict` differs from `Trainer.predict`, whose arrays are no drop-in: it takes and
returns Tensors. What stays different from MindSpore is listed in docs/migrating.md.
"""

from __future__ import annotations

from ..trainer import Trainer
from . import verbs


class Model(Trainer):
    """A `Trainer` that predicts as `mindspore.Model` does, Tensors from Tensors."""

    predict = verbs.predict


class RecModel(Model):
    """The same under the name of MindSpore Rec's class, whose `online_train(train_dataset)` every `Trainer` has."""

"""Checks of a trainer's constructor arguments, before the first step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import mindspore
from mindspore import experimental, nn

from .. import checks
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import ConfigurationError
from ..metrics.loss import Loss
from ..mindspore_internals import cpu_kernels, device
from ..mindspore_internals.cell_structure import (
    cells_and_names,
    children_of,
    moving_statistics,
    parameters_of,
    trainable_parameters,
)
from .denominators import ROWS, denominator_of, name_of
from .dropout import repeatable
from .multi_task import MultiTaskLoss
from .optimizers import PLACEHOLDER, OptimizerGroups
from .row_losses import RowLoss

logger = logging.getLogger(__name__)

_OPTIMIZERS = (nn.Optimizer, experimental.optim.Optimizer)


def check_network(network: Any, loss_fn: Any, optimizer: Any, eval_network: Any) -> None:
    """Check that the parts are cells and fit together."""
    if not isinstance(network, nn.Cell):
        raise ConfigurationError(f"network takes a mindspore.nn.Cell; received {_kind(network)}")
    if loss_fn is not None and (isinstance(loss_fn, type) or not callable(loss_fn)):
        raise ConfigurationError(f"loss_fn takes a Cell, a function or None; received {_kind(loss_fn)}")
    if eval_network is not None and not isinstance(eval_network, nn.Cell):
        raise ConfigurationError(f"eval_network takes a Cell or None; received {_kind(eval_network)}")
    _check_methods(network)
    _check_names(network)
    _check_bce_weights(network, loss_fn, eval_network)
    _check_task_order(network, loss_fn)
    if optimizer is None:
        return
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        raise ConfigurationError(
            "optimizer takes a MindSpore optimizer such as nn.Adam(network.trainable_params()); received "
            f"{_kind(optimizer)}"
        )
    if type(optimizer).__module__.startswith("mindspore.mint.optim") and not device.current().trains_with_mint:
        name = type(optimizer).__name__
        raise ConfigurationError(
            f"optimizer: mint.optim.{name} does not update the weights on {device.current().name}, and "
            "reports no error; use "
            f"mindspore.experimental.optim.{name}, which takes the same arguments, or an optimizer of mindspore.nn"
        )
    if isinstance(network, nn.TrainOneStepCell):
        raise ConfigurationError(
            f"optimizer: {type(network).__name__} already holds an optimizer; pass the inner network with loss_fn and "
            "optimizer, or only the training cell"
        )
    own = {id(parameter) for parameter in parameters_of(network)}
    own |= {id(parameter) for parameter in parameters_of(loss_fn)} if isinstance(loss_fn, nn.Cell) else set()
    if not any(id(parameter) in own or parameter.name == PLACEHOLDER for parameter in optimizer.parameters):
        raise ConfigurationError(
            "optimizer: it has none of the network's parameters; build it from network.trainable_params() of the "
            "network that is trained"
        )


def warn_of_frozen(network: nn.Cell, optimizer: nn.Cell | None) -> None:
    """Warn of frozen parameters that the optimizer trains all the same."""
    statistics = {id(parameter) for parameter in moving_statistics(network)}
    held = () if optimizer is None else optimizer.parameters
    frozen = [parameter.name for parameter in held if not (parameter.requires_grad or id(parameter) in statistics)]
    if frozen:
        logger.warning(
            "%s%s: requires_grad is False, but the optimizer was made with it and trains it; make the optimizer of "
            "trainable_params() after freezing, and a new Trainer",
            ", ".join(frozen[:3]),
            f" and {len(frozen) - 3} more" if len(frozen) > 3 else "",
        )


class FreezingCheck:
    """Warns once if callbacks freeze or unfreeze parameters during a training.

    That has no effect on the training. None instead of a network: nothing is checked.
    """

    def __init__(self, network: nn.Cell | None) -> None:
        self._network = network
        self._trained = self._names()

    def _names(self) -> set[str]:
        return set() if self._network is None else {p.name for p in trainable_parameters(self._network)}

    def warn(self, step: int) -> None:
        """Warn if other parameters are trainable at `step` than at the beginning."""
        changed = self._trained ^ self._names()
        if changed:
            self._network, self._trained = None, set()
            logger.warning(
                "step %d: a callback changed requires_grad of %s, which has no effect during a training: the optimizer "
                "trains what it was made with; make an optimizer and a Trainer for each part of the training",
                step,
                ", ".join(sorted(changed)[:3]),
            )


def warn_of_nesterov(optimizer: nn.Cell | None) -> None:
    """Warn of an option of `nn.Momentum` that MindSpore ignores on the CPU."""
    parts = (optimizer,) if not isinstance(optimizer, OptimizerGroups) else optimizer.optimizers
    is_ignored = device.current().name == "CPU" and any(isinstance(p, nn.Momentum) and p.use_nesterov for p in parts)
    if is_ignored:
        logger.warning(
            "nn.Momentum(use_nesterov=True): MindSpore ignores use_nesterov on the CPU; nn.SGD(momentum=..., "
            "nesterov=True) has Nesterov's momentum there"
        )


def _check_methods(network: nn.Cell) -> None:
    """Refuse an attribute that hides a method MindSpore calls during compilation."""
    for name in ("add_flags_recursive", "cells", "cells_and_names", "name_cells", "set_train"):
        if not callable(getattr(network, name)):
            raise ConfigurationError(
                f"network: {type(network).__name__}.{name} is {_kind(getattr(network, name))}, and MindSpore calls the "
                f"method of that name; rename the attribute"
            )
    for child in children_of(network).values():
        _check_methods(child)


def _check_names(network: nn.Cell) -> None:
    named: dict[str, Any] = {}
    for parameter in trainable_parameters(network):
        if named.setdefault(parameter.name, parameter) is not parameter:
            raise ConfigurationError(
                f"network: two parameters are named {parameter.name!r}. This happens if a cell with auto_prefix=False "
                "contains several networks, or their optimizers. Give each network its own prefix before you create "
                "its optimizer: generator.update_parameters_name('generator.')"
            )


def _check_bce_weights(network: nn.Cell, loss_fn: Any, eval_network: Any) -> None:
    """Refuse a `BCELoss` weight that MindSpore's CPU kernel would read past its end.

    A `BCELoss` that is the `loss_fn` itself is accepted, because `losses.broadcasting` replaces it.
    """
    computed = {id(loss) for loss in (loss_fn, *getattr(loss_fn, "losses", ()))}
    for root in (network, loss_fn, eval_network):
        for name, cell in cells_and_names(root) if isinstance(root, nn.Cell) else ():
            if type(cell) is nn.BCELoss and cell.weight is not None and id(cell) not in computed:
                raise ConfigurationError(
                    f"{type(root).__name__}{'.' * bool(name)}{name}: nn.BCELoss reads a weight of shape "
                    f"{list(cell.weight.shape)} past its end if the prediction has more elements; give the loss to "
                    "Trainer as loss_fn, or build it without weight and with reduction='none', and multiply its result "
                    "by the weight"
                )


def _check_task_order(network: nn.Cell, loss_fn: Any) -> None:
    """Refuse a loss that names the network's tasks in another order.

    Each output would learn the label of another task.
    """
    # A subclass may return its outputs in another form.
    if not isinstance(loss_fn, MultiTaskLoss) or not vars(type(network)).get("outputs_follow_tasks", False):
        return
    tasks = tuple(network.tasks)
    if tasks != loss_fn.tasks and set(tasks) == set(loss_fn.tasks):
        raise ConfigurationError(
            f"network: {type(network).__name__} returns its tasks in the order {', '.join(tasks)}, and MultiTaskLoss "
            f"has its losses in the order {', '.join(loss_fn.tasks)}: name the losses in the order of the network"
        )


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}; pass an instance, {value.__name__}(...)"
    return type(value).__name__


def check_compile(network: nn.Cell, compile: Any) -> bool:
    """Check and return `compile`; log a warning if programs are not compiled.

    Also checks that the device supports the network's sparse tables.
    """
    if not isinstance(compile, bool):
        checks.refuse("compile", "True or False", compile)
    sparse = [cell.spec.name for cell in embedding_cells(network) if not cell.is_dense]
    device.check_sparse_tables(sparse)
    if not compile:
        if sparse:
            raise ConfigurationError(
                f"compile=False: sparse tables ({', '.join(sparse)}) need compiled programs; use compile=True, "
                "or tables with a capacity and mode='dense'"
            )
        logger.warning("compile=False: the network runs operator by operator, one step per call, many times slower")
    return compile


def check_deterministic(network: nn.Cell, deterministic: Any, compiled: bool, lowers: bool) -> bool:
    """Check and return `deterministic`: results must not depend on the core count.

    Raises:
        ConfigurationError: results would depend on it, or the trainer has not been tested on this device.
    """
    if not checks.boolean("deterministic", deterministic):
        return False
    where = device.current()
    if not where.uses_onednn:
        raise ConfigurationError(
            f"deterministic=True is only for the CPU; on {where.name} call mindspore.set_deterministic(True) "
            "before you build the first network (the trainer has not been tested with it)"
        )
    if not cpu_kernels.can_plan_for_one_core():
        raise ConfigurationError(
            f"deterministic=True: the oneDNN of MindSpore {mindspore.__version__} has no setting for the number of "
            "threads, so its results depend on the number of cores; leave deterministic out and start the process on "
            "one core, for example with taskset -c 0"
        )
    if not compiled:
        raise ConfigurationError("deterministic=True: results of uncompiled operators depend on the number of cores")
    if lowers:
        raise ConfigurationError(
            "deterministic=True: in a lower precision, gradients of strided and transposed convolutions still depend "
            'on the number of cores; use amp_level="O0"'
        )
    if not repeatable(network):
        raise ConfigurationError(
            "deterministic=True: MindSpore's nn.Dropout draws masks that are not repeatable; add exact_resume=True, "
            "which replaces it by a repeatable one"
        )
    return True


def is_training_step(network: nn.Cell) -> bool:
    """Return whether `network` is a `nn.TrainOneStepCell` or holds an optimizer."""
    return isinstance(network, nn.TrainOneStepCell) or any(
        isinstance(cell, _OPTIMIZERS) for _, cell in cells_and_names(network)
    )


def check_custom_step(network: nn.Cell, **options: Any) -> None:
    """Refuse options that would have to be applied inside the user's training step.

    A network that is not a training step may have an amp level.
    """
    neutral = {"amp_level": "O0", "gradient_accumulation_steps": 1}
    if not is_training_step(network):
        del options["amp_level"]
    wrong = [f"{name}={value!r}" for name, value in options.items() if value != neutral.get(name)]
    if wrong:
        raise ConfigurationError(
            f"{', '.join(wrong)}: without an optimizer, the network is a complete training step, which has to do this "
            "itself; pass network, loss_fn and optimizer instead, or lower the precision of the networks in the step "
            "before you build it: mindspore.amp.auto_mixed_precision(network, 'O2')"
        )


def check_denominator(
    network: nn.Cell,
    loss_fn: Any,
    optimizer: Any,
    accumulate: int,
    processes: int,
    weighed: RowLoss | None = None,
) -> str:
    """Return the kind of the loss's denominator; check that losses of parts add up.

    The parts of a batch are micro-batches and the rows of each process; see `trainer.graph.denominators`. `weighed` is
    the loss with declared row weights; its denominator is the sum of the weights.

    Raises:
        ConfigurationError: there are several parts, and either the loss compares rows (its class has ``rows_depend =
            True``), or its denominator is unknown, or gradients are accumulated over tasks with different denominators.
    """
    own = network if loss_fn is None else loss_fn
    tasks = loss_fn if isinstance(loss_fn, MultiTaskLoss) else None
    if weighed is not None:
        denominator, kind = weighed.divisor, weighed.kind
    else:
        denominator = denominator_of(own) if tasks is None else tasks
        kind = ROWS if denominator is None else denominator.kind
    if accumulate == 1 and processes == 1:
        return kind
    divided = f"gradient_accumulation_steps={accumulate}" if accumulate > 1 else f"{processes} processes"
    if getattr(type(loss_fn), "rows_depend", False):
        accumulated = (
            "and accumulated batches are not compared with each other, so the update is not that of one large batch; "
            "use a larger batch_size with gradient_accumulation_steps=1"
        )
        shared = "and each process has a part of it; train in one process"
        raise ConfigurationError(
            f"{divided}: {name_of(loss_fn)} compares each row with the others of its batch, "
            f"{accumulated if accumulate > 1 else shared}"
        )
    unknown = [own] if denominator is None else []
    if tasks is not None:
        unknown = tasks.unknown
        if accumulate > 1 and not tasks.unify_denominators():
            raise ConfigurationError(
                f"{divided}: the tasks of {name_of(loss_fn)} divide by different numbers (of rows, of labels, or "
                "sums of class weights), and some of these are known only at the end of an update; use a larger "
                "batch_size with gradient_accumulation_steps=1"
            )
    if unknown and (loss_fn is not None or optimizer is not None):  # a training step reduces the loss itself
        raise ConfigurationError(
            f"{divided}: the denominator of {name_of(unknown[0])} is unknown, so losses of parts of a batch cannot "
            "be added up; give it an attribute denominator: 'rows' for a mean over rows, 1 for a sum, or a method that "
            "returns it for a batch's label columns. MindSpore's own losses need no such attribute, except "
            "for RMSELoss and the Dice losses, which are not means over rows"
        )
    return tasks.kind if tasks is not None else kind


def check_eval_indexes(
    eval_network: Any, eval_indexes: Sequence[int] | None, metrics: Iterable[Any] = ()
) -> tuple[int, int, int] | None:
    """Return the positions of loss, prediction and label in the evaluation outputs.

    Raises:
        ConfigurationError: `eval_indexes` is not three whole numbers, or was given without `eval_network`; or it is
            missing and a metric would mistake the first output of `mindspore.nn.WithEvalCell`, the loss, for its input.
    """
    if eval_network is None:
        if eval_indexes is not None:
            raise ConfigurationError(f"eval_indexes={eval_indexes!r} needs eval_network, which was not given")
        return (0, 1, 2)
    if eval_indexes is None:
        reading = [
            metric for metric in metrics if not isinstance(metric, Loss) and not getattr(metric, "indexes", None)
        ]
        if isinstance(eval_network, nn.WithEvalCell) and reading:
            raise ConfigurationError(
                f"{type(reading[0]).__name__} would read the three outputs of eval_network=WithEvalCell, which are "
                "loss, prediction and label; add eval_indexes=[0, 1, 2]"
            )
        return None
    indexes = tuple(eval_indexes)
    if len(indexes) != 3 or not all(map(checks.is_whole, indexes)):
        wanted = "three whole numbers, the positions of loss (-1 for none), prediction and label"
        checks.refuse("eval_indexes", wanted, eval_indexes)
    return indexes

"""Sum gradients over processes inside a training step that a user wrote.

Such a step passes its gradients through a reducer before the optimizer. `nn.TrainOneStepCell` and its subclasses have a
`grad_reducer`; other cells use a `nn.DistributedGradReducer`. MindSpore's reducer gives all processes the same weight.
`StepReducer` replaces it and weights each process by its number of rows. Batches may then differ in size, and a process
may have no rows.
"""

from __future__ import annotations

import logging

from mindspore import Parameter, Tensor, nn

from ..mindspore_internals.cell_structure import cells_and_names, children_of, hide, replace_child
from .exchange import Exchange

logger = logging.getLogger(__name__)


class StepReducer(nn.Cell):
    """Averages gradients over the rows of all processes, for a step that calls it.

    Args:
        exchange: computes the sums.
        rows: float32 [2], see `Exchange`.
        factor: multiple of the mean to return: 1.0, or the number of processes to return a sum instead.
    """

    def __init__(self, exchange: Exchange, rows: Parameter, factor: float) -> None:
        super().__init__(auto_prefix=False)
        # Hidden, so that the user's step, which contains the reducer, gets no additional parameters or cells.
        hide(self, "exchange", exchange)
        hide(self, "rows", rows)
        self.factor = factor

    def construct(self, gradients):
        """Return the reduced gradients: a tensor, or a tuple or list of tensors."""
        if isinstance(gradients, Tensor):
            return self.exchange.mean_gradients((gradients,), self.rows, self.factor)[0]
        return self.exchange.mean_gradients(gradients, self.rows, self.factor)


def reducers_of(step: nn.Cell) -> list[tuple[nn.Cell, str]]:
    """Return (cell, attribute name) for each gradient reducer of a training step.

    Without any reducer, returns the `grad_reducer` of each `nn.TrainOneStepCell`, which is an identity unless
    MindSpore's context is data-parallel.
    """
    cells = [cell for _, cell in cells_and_names(step)]
    reducers = [(cell, name) for cell in cells for name, child in children_of(cell).items() if _is_reducer(child)]
    return reducers or [(cell, "grad_reducer") for cell in cells if isinstance(cell, nn.TrainOneStepCell)]


def replace_reducers(step: nn.Cell, exchange: Exchange, rows: Parameter) -> None:
    """Replace each reducer of a training step by a `StepReducer`."""
    for cell, name in reducers_of(step):
        factor = _factor(getattr(cell, name), exchange.processes)
        if factor != 1.0 and exchange.is_main:
            logger.warning(
                "%s.%s sums the gradients of %d processes, so an update is %g times as large as with one process; for "
                "the mean use DistributedGradReducer(parameters, mean=True), or call "
                "set_auto_parallel_context(gradients_mean=True) before a TrainOneStepCell is created",
                type(cell).__name__,
                name,
                exchange.processes,
                factor,
            )
        replace_child(cell, name, StepReducer(exchange, rows, factor))
        if isinstance(cell, nn.TrainOneStepCell):
            cell.reducer_flag = True


def _is_reducer(cell: nn.Cell) -> bool:
    """Return whether `cell` is MindSpore's reducer, unchanged, or a `StepReducer`."""
    if isinstance(cell, nn.DistributedGradReducer):
        return type(cell).construct is nn.DistributedGradReducer.construct
    return isinstance(cell, StepReducer)


def _factor(reducer: object, processes: int) -> float:
    """Return the multiple of the mean that a reducer computes."""
    if isinstance(reducer, StepReducer):
        return reducer.factor
    if not isinstance(reducer, nn.DistributedGradReducer):
        return 1.0
    if not reducer.mean:
        return float(processes)
    return round(processes * float(reducer.degree.asnumpy()), 6)  # `degree` is a reciprocal

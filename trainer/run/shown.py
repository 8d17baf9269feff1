"""A trainer as an HTML table for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from callbacks.summary import table_html

from ..mindspore_internals.cell_structure import children_of, parameters_of

if TYPE_CHECKING:
    from .trainer_base import TrainerBase


def trainer_html(trainer: TrainerBase) -> str:
    """Return the network's layers with their parameters, and the settings."""
    network = trainer.network
    rows = [[name, type(cell).__name__, _count(cell)] for name, cell in children_of(network).items()]
    total = _count(network)
    if not rows:
        rows = [["", type(network).__name__, total]]
    settings = {
        "parameters": total,
        "loss": type(trainer.loss_fn).__name__ if trainer.loss_fn is not None else "the network's own",
        "optimizer": type(trainer.optimizer).__name__ if trainer.optimizer is not None else "the network's own",
        "learning rate": trainer.learning_rate,
        "precision": f"{trainer.precision.level}",
        "sink": trainer.sink_mode,
        "sparse tables": "none" if trainer.tables is None else type(trainer.tables).__name__,
        "metrics": ", ".join(trainer.metrics) or "none",
        "steps done": f"{trainer.state.progress.global_step:,}",
        "epochs done": f"{trainer.state.progress.epoch:,} (a further fit counts on from here)",
    }
    if trainer.tables is not None:
        tables = trainer.tables.tables.tables
        settings["sparse tables"] = ", ".join(f"{name}: {len(table):,} rows" for name, table in tables.items())
    return (
        f"<div><b>Trainer</b> of {html.escape(type(network).__name__)}"
        + table_html(("layer", "kind", "parameters"), rows)
        + table_html(("setting", "value"), [[name, value] for name, value in settings.items()])
        + "</div>"
    )


def _count(cell: object) -> str:
    return f"{sum(parameter.size for parameter in parameters_of(cell)):,}"

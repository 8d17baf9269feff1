"""Which tables are read and updated together: those of one width and row optimizer, in one numbering of rows per step.

A step's distinct ids are numbered once for a whole bundle of columns. Every table of the bundle keeps the row of an id
under the id's number, so tables on the same ids need no translation, and many tables need one padded size, one read and
one update.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .fields import Component
from .row_optimizers import RowOptimizer
from .spec import TableSpec


@dataclass
class RowGroup:
    """Tables whose rows stand in one array of the graph.

    Attributes:
        bundle: index of the bundle.
        tables: index of each table, one for every component of the bundle.
    """

    bundle: int
    tables: list[int]


@dataclass
class Bundle:
    """Components whose ids are numbered together.

    Attributes:
        components: indices of the components.
        groups: indices of the row groups; those of a component's tables.
        indirect: whether tables number their rows for themselves and translate: one component, a group for each table.
        in_graph: whether some group keeps its working set in the graph, whose size then is part of the program.
    """

    components: list[int]
    groups: list[int]
    indirect: bool = False
    in_graph: bool = True


def group_tables(
    components: Sequence[Component], specs: Sequence[TableSpec], optimizers: Sequence[RowOptimizer | None]
) -> tuple[list[Bundle], list[RowGroup]]:
    """Return the bundles of `components` and the row groups of their tables.

    Args:
        components: what reads which ids.
        specs: the tables.
        optimizers: row optimizer of each table; None for tables that stay as they are.
    """
    bundles: list[Bundle] = []
    groups: list[RowGroup] = []
    found: dict[Hashable, Bundle] = {}
    first = {id(optimizer): number for number, optimizer in reversed(list(enumerate(optimizers)))}
    kinds = [_kind(spec, optimizer, first[id(optimizer)]) for spec, optimizer in zip(specs, optimizers, strict=True)]
    for number, component in enumerate(components):
        tables = list(component.specs)
        indirect = len(tables) > 1 and not _one_row_an_id(component, specs)
        order = tables if indirect else sorted(tables, key=lambda table: repr(kinds[table]))
        key = (number,) if indirect else tuple(kinds[table] for table in order)
        if key not in found:
            found[key] = Bundle([], list(range(len(groups), len(groups) + len(order))), indirect)
            groups += [RowGroup(len(bundles), []) for _ in order]
            bundles.append(found[key])
        found[key].components.append(number)
        for group, table in zip(found[key].groups, order, strict=True):
            groups[group].tables.append(table)
    return bundles, groups


def separate_tables(components: Sequence[Component]) -> tuple[list[Bundle], list[RowGroup]]:
    """Return a bundle for each component and a group for each table, as networks are exported."""
    bundles: list[Bundle] = []
    groups: list[RowGroup] = []
    for number, component in enumerate(components):
        own = list(range(len(groups), len(groups) + len(component.specs)))
        groups += [RowGroup(number, [table]) for table in component.specs]
        bundles.append(Bundle([number], own, component.indirect))
    return bundles, groups


def _kind(spec: TableSpec, optimizer: RowOptimizer | None, first_table: int) -> Hashable:
    if optimizer is None or not spec.trainable:
        return (spec.dim, False)
    # what a user's own optimizer depends on is not known, so only the very same object counts as equal; it is named by
    # the first table that has it, which is the same in every process
    ours = type(optimizer).__module__ == RowOptimizer.__module__
    return (spec.dim, True, type(optimizer).__name__, tuple(optimizer.settings().items()) if ours else first_table)


def _one_row_an_id(component: Component, specs: Sequence[TableSpec]) -> bool:
    """Return whether every table of the component gives every one of its ids a row that no other id shares."""
    first = specs[component.specs[0]]
    return all(
        spec.trainable
        and spec.capacity is None
        and spec.admission is None
        and spec.eviction is None
        and spec.padding == first.padding
        and bool(np.all(reads))
        for spec, reads in zip((specs[table] for table in component.specs), component.reads, strict=True)
    )

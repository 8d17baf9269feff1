"""Group tables, so that few operators in the graph read and update many of them.

- A component is a set of tables that read common elements of the input columns.
- A stack is a set of tables of equal width and row optimizer. In the graph their rows are one array, with one padded
  size, one read and one update per step.
- A bundle is a set of components whose distinct ids are numbered together in every step. The number of an id is the
  position of its row in each stack of the bundle, so tables that read the same ids need no translation. If several ids
  of a table may share a row, the bundle is indirect: each table numbers its own rows, and a map translates the number
  of an id to the position of its row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import DataError
from ..tables.hashing import float_ids_hint
from ..tables.spec import TableSpec


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """Elements of an input column, given as flat indices into a row; None for all."""

    column: int
    elements: np.ndarray | None = None

    def take(self, values: np.ndarray) -> np.ndarray:
        """Return each row's elements: [batches, batch, ...] -> [batches, batch, elements]."""
        values = values.reshape(*values.shape[:2], -1)
        return values if self.elements is None else values[:, :, self.elements]


@dataclass
class Component:
    """Tables that read common elements, and all elements that they read."""

    specs: list[int]  # index of each table
    parts: list[ColumnPart]  # the elements, possibly from several columns
    reads: list[np.ndarray]  # per table, a bool mask [elements of all parts] of the elements it reads

    def elements(self, index: int, count: int) -> np.ndarray | slice:
        """Return which of `count` elements the table `specs[index]` reads.

        Each batch may pad its lists to another length, so `count` may differ from the traced number.

        Raises:
            DataError: the count differs and the table reads only some of the elements.
        """
        mask = self.reads[index]
        if mask.all():
            return slice(None)
        if len(mask) != count:
            raise DataError(
                f"a table reads only some elements of a column that other tables read too: the column had {len(mask)} "
                f"elements per row in the first batch, and has {count} in this batch; pad the lists to one length"
            )
        return mask


@dataclass(frozen=True, slots=True)
class ColumnElement:
    """One element of every row of an input column."""

    column: int
    element: int  # flat index into a row


@dataclass(frozen=True, slots=True)
class DenseField:
    """Elements that index an ordinary dense embedding, for range checks."""

    part: ColumnPart
    capacity: int
    padding: int | None
    name: str


def _range_of(values: np.ndarray) -> tuple[int, int]:
    return int(values.min(initial=0)), int(values.max(initial=0))


@dataclass
class FieldMap:
    """Maps input elements to the tables that they feed."""

    components: list[Component] = field(default_factory=list)  # sparse tables with the elements they read
    dense: list[DenseField] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)  # tables with a cell that the network calls more than once
    names: tuple[str, ...] = ()  # names of the columns, if known
    numbers: set[int] = field(default_factory=set)  # columns that no table reads, and that held no text at first
    # id() of a cell -> the element that it reads, for cells that always receive one unchanged element of each row
    unchanged: dict[int, ColumnElement] = field(default_factory=dict)

    def name_of(self, column: int) -> str:
        """Return a column's name for messages."""
        return f"column {self.names[column]!r}" if column < len(self.names) else f"column {column}"

    @property
    def id_columns(self) -> set[int]:
        """Columns that hold ids of sparse tables."""
        return {part.column for component in self.components for part in component.parts}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the components as JSON."""
        return [
            {
                "specs": component.specs,
                "parts": [[p.column, None if p.elements is None else p.elements.tolist()] for p in component.parts],
                "reads": [mask.tolist() for mask in component.reads],
            }
            for component in self.components
        ]

    def dense_to_json(self) -> list[list[Any]]:
        """Return `dense` as JSON."""
        elements = [None if f.part.elements is None else f.part.elements.tolist() for f in self.dense]
        return [[f.part.column, e, f.capacity, f.padding, f.name] for f, e in zip(self.dense, elements, strict=True)]

    def check_dense(self, columns: Sequence[np.ndarray]) -> None:
        """Check the ids of dense tables in columns [batches, batch, ...].

        Raises:
            DataError: they are not integers, or one is out of range. MindSpore would read the last row for -1, and
                fail for others.
        """
        for table in self.dense:
            values = columns[table.part.column]
            name = f"{self.name_of(table.part.column)}: dense table {table.name!r}"
            if values.dtype.kind not in "iu":
                raise DataError(
                    f"{name} takes integers from 0 to {table.capacity - 1}; received {values.dtype}"
                    f"{float_ids_hint(values)}. mode='sparse' takes any ids"
                )
            low, high = _range_of(values := table.part.take(values))
            if table.padding is not None and (high >= table.capacity or low < 0):
                low, high = _range_of(values[values != table.padding])
            if high >= table.capacity or low < 0:
                raise DataError(
                    f"{name} takes ids from 0 to {table.capacity - 1}; received {low if low < 0 else high}. "
                    "mode='sparse' takes any ids"
                )

    def limits(self, column: int) -> tuple[int, int] | None:
        """Return the smallest and largest id of a column that dense tables read whole."""
        tables = [f for f in self.dense if f.part.column == column and f.part.elements is None]
        if not tables:
            return None
        paddings = [table.padding for table in tables if table.padding is not None]
        return min([0, *paddings]), max([min(table.capacity for table in tables) - 1, *paddings])

    @classmethod
    def from_json(cls, components: list[dict[str, Any]], dense: Sequence[Sequence[Any]] = ()) -> FieldMap:
        """Restore a map from the results of `to_json` and `dense_to_json`."""
        return cls(
            [
                Component(
                    json["specs"],
                    [ColumnPart(column, None if e is None else np.array(e)) for column, e in json["parts"]],
                    [np.array(mask, np.bool_) for mask in json["reads"]],
                )
                for json in components
            ],
            [DenseField(ColumnPart(c, None if e is None else np.array(e)), *table) for c, e, *table in dense],
        )


@dataclass
class Stack:
    """Tables whose rows are one array in the graph."""

    bundle: int
    tables: list[int]  # index of each table, one per component of the bundle


@dataclass
class Bundle:
    """Components whose ids are numbered together."""

    components: list[int]
    stacks: list[int]  # indices of the stacks that hold the components' tables
    indirect: bool = False  # see the module docstring; such a bundle has one component and a stack per table
    in_graph: bool = True  # whether a stack keeps its working set in the graph, which then takes its size as an input

    @property
    def sharing(self) -> list[list[int]]:
        """Groups of stacks that use the same positions."""
        return [[stack] for stack in self.stacks] if self.indirect else [self.stacks]


@dataclass(frozen=True, slots=True)
class Layout:
    """All bundles of components and stacks of tables."""

    bundles: list[Bundle] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    _bundle_of: dict[Hashable, Bundle] = field(default_factory=dict)

    def add(self, component: int, tables: Sequence[int], kind: Hashable = None, *, indirect: bool = False) -> None:
        """Add a component to the bundle of its `kind`, or to a new bundle if None.

        Table i of the component's `tables` joins stack i of the bundle.
        """
        bundle = self._bundle_of.get(kind)
        if bundle is None:
            first = len(self.stacks)
            bundle = Bundle([], list(range(first, first + len(tables))), indirect)
            self.stacks.extend(Stack(len(self.bundles), []) for _ in tables)
            self.bundles.append(bundle)
            if kind is not None:
                self._bundle_of[kind] = bundle
        bundle.components.append(component)
        for stack, table in zip(bundle.stacks, tables, strict=True):
            self.stacks[stack].tables.append(table)


def stack_tables(components: Sequence[Component], specs: Sequence[TableSpec], kinds: Sequence[Hashable]) -> Layout:
    """Return the layout that stacks tables of equal kind.

    Kinds and their ``repr`` must be equal in all processes, which then compute the same layout.
    """
    layout = Layout()
    for index, component in enumerate(components):
        if len(component.specs) > 1 and not _gives_each_id_one_row(component, specs):
            layout.add(index, component.specs, indirect=True)
        else:
            order = sorted(component.specs, key=lambda table: repr(kinds[table]))
            layout.add(index, order, tuple(kinds[table] for table in order))
    return layout


def separate_tables(components: Sequence[Component]) -> Layout:
    """Return a layout with one bundle per component and one stack per table."""
    layout = Layout()
    for index, component in enumerate(components):
        layout.add(index, component.specs, indirect=len(component.specs) > 1)
    return layout


def read_layout(components: Sequence[Component], specs: Sequence[TableSpec]) -> Layout:
    """Return the layout of a read-only program, which has a position for every id.

    Tables of equal width share a stack, even with different optimizers. Tables that read the same elements but have
    different padding ids form an indirect bundle.
    """
    layout = Layout()
    for index, component in enumerate(components):
        order = sorted(component.specs, key=lambda table: specs[table].dim)
        if len({specs[table].padding for table in order}) > 1:
            layout.add(index, order, indirect=True)
        else:
            layout.add(index, order, tuple(specs[table].dim for table in order))
    return layout


def _gives_each_id_one_row(component: Component, specs: Sequence[TableSpec]) -> bool:
    """Return whether each table of the component gives every id its own row."""
    members = [specs[table] for table in component.specs]
    return all(
        spec.trainable and spec.keeps_every_id and spec.padding == members[0].padding and bool(np.all(reads))
        for spec, reads in zip(members, component.reads, strict=True)
    )

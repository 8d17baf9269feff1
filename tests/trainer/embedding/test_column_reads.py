"""Cells that read columns unchanged train like a group, whatever the step does; others keep reads of their own."""

import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.embedding import Embedding, EmbeddingGroup
from trainer.embedding.layers.tracing import find_fields

FIELDS, DIM, BATCH = 5, 4, 8
NAMES = [f"field{i}" for i in range(FIELDS)]
rng = np.random.default_rng(0)
IDS = rng.integers(0, 9, (6 * BATCH, FIELDS))
LABEL = (rng.random(len(IDS)) < 0.5).astype(np.float32)


class Cells(nn.Cell):
    """A cell for each column of `ids`."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.tables = nn.CellList([Embedding(DIM, name=name, **options) for name in NAMES])
        self.head = nn.Dense(FIELDS * DIM, 1, weight_init="ones", has_bias=False)

    def construct(self, ids):
        vectors = ()
        for i in range(FIELDS):
            vectors += (self.tables[i](ids[:, i]),)
        return self.head(ops.stack(vectors, 1).reshape(-1, FIELDS * DIM)).reshape(-1)


class CellsOfColumns(Cells):
    """A cell for each of several columns."""

    def construct(self, a, b, c, d, e):
        vectors = (self.tables[0](a), self.tables[1](b), self.tables[2](c), self.tables[3](d), self.tables[4](e))
        vectors = ops.stack(vectors, 1)
        return self.head(vectors.reshape(-1, FIELDS * DIM)).reshape(-1)


class Group(nn.Cell):
    """The same tables in a group."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.group = EmbeddingGroup(DIM, NAMES, **options)
        self.head = nn.Dense(FIELDS * DIM, 1, weight_init="ones", has_bias=False)

    def construct(self, ids):
        return self.head(self.group(ids).reshape(-1, FIELDS * DIM)).reshape(-1)


def trained(network, columns=(IDS,), batch_sizes=(BATCH,), sink_size=1, **options):
    """Return the network's predictions and rows after training it with batches of each size."""
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05), **options)
    for batch_size in batch_sizes:
        trainer.fit((*columns, LABEL), batch_size=batch_size, shuffle=False, callbacks=[], sink_size=sink_size)
    cells = network.group.members if isinstance(network, Group) else network.tables
    rows = [cell.host_table().lookup(np.arange(9), None) for cell in cells]
    values = [cell.host_table().store.read(np.maximum(own, 0)) for cell, own in zip(cells, rows, strict=True)]
    return np.concatenate([np.asarray(trainer.predict(tuple(columns))).reshape(-1), np.concatenate(values).reshape(-1)])


@pytest.mark.parametrize(
    ("cells", "step"),
    [
        ({}, {}),
        ({"padding": 0}, {}),
        ({"dtype": "float16"}, {}),
        ({}, {"gradient_accumulation_steps": 2}),
        ({}, {"sink_size": 3}),
        ({}, {"amp_level": "O2"}),
        ({}, {"batch_sizes": (BATCH, 2 * BATCH, BATCH)}),
        ({"padding": 0}, {"clip_norm": 0.01}),
    ],
    ids=["plain", "padding", "float16", "accumulated", "sunk", "amp", "sizes", "clipped"],
)
def test_cells_train_like_a_group(cells, step):
    expected = trained(Group(**cells), **step)
    np.testing.assert_array_equal(trained(Cells(**cells), **step), expected)
    assert np.abs(expected).max() > 0.1


def test_columns_may_be_inputs_of_their_own():
    expected = trained(Group())
    np.testing.assert_array_equal(trained(CellsOfColumns(), list(IDS.T)), expected)


def test_trainers_of_one_network_take_turns():
    network, group = Cells(), Group()
    assert len({id(trained(one)) for one in (network, group)}) == 2
    np.testing.assert_array_equal(trained(network), trained(group))


class Masked(Cells):
    """Cells whose ids are hidden in training."""

    def construct(self, ids):
        if self.training:
            ids = ops.zeros_like(ids)
        return super().construct(ids)


class Branching(Cells):
    """Cells whose ids depend on the data."""

    def construct(self, ids):
        if ids.sum() < 0:
            ids = ids[::-1]
        return super().construct(ids)


class Computed(Cells):
    """Cells whose ids an operator has returned, with the same values."""

    def construct(self, ids):
        return super().construct(ops.select(ids > 0, ids, ops.zeros_like(ids)))


class FirstRows(Cells):
    """Cells that read the first rows of a batch only: all of them of a batch of two."""

    def construct(self, ids):
        return super().construct(ids[: BATCH // 2])


class FirstRowsOfColumns(Cells):
    """Cells that read the first rows of their columns."""

    def construct(self, ids):
        vectors = ()
        for i in range(FIELDS):
            vectors += (self.tables[i](ids[:, i][..., : BATCH // 2]),)
        return self.head(ops.stack(vectors, 1).reshape(-1, FIELDS * DIM)).reshape(-1)


@pytest.mark.parametrize("network", [Masked, Branching, Computed, FirstRows, FirstRowsOfColumns])
def test_ids_that_may_differ_from_the_column_are_not_taken_for_it(network):
    assert len(find_fields(Cells(), [IDS]).unchanged) == FIELDS
    assert not find_fields(network(), [IDS]).unchanged


def test_a_cell_that_reads_twice_trains_by_both_reads():
    class TwiceInGroup(Group):
        def construct(self, ids):
            return super().construct(ids) + self.group(ids[::-1])[:, 0].sum(1)

    class TwiceInCells(Cells):
        def construct(self, ids):
            total = super().construct(ids)
            for i in range(FIELDS):
                vectors = self.tables[i](ids[::-1, i])
                total = total + vectors.sum(1) if i == 0 else total
            return total

    np.testing.assert_allclose(trained(TwiceInCells()), trained(TwiceInGroup()), atol=1e-6)


class Independent(CellsOfColumns):
    rows_are_independent = True


def test_padded_batches_train_like_unpadded_ones():
    sizes = (8, 6, 5, 7, 9, 3)  # those from the third on are padded

    def rows_of(network):
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05))
        ends = np.cumsum(sizes)
        batches = [(*IDS[end - n : end].T, LABEL[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
        trainer.fit(batches, 2, callbacks=[])
        ids = np.arange(9)
        return np.stack([table.host_table().store.read(table.host_table().lookup(ids)) for table in network.tables])

    plain, padded = rows_of(CellsOfColumns()), rows_of(Independent())
    np.testing.assert_allclose(padded, plain, rtol=1e-5, atol=1e-7)

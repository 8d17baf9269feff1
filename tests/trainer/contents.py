"""All that a training leaves in a trainer, to be compared with another one's."""

import numpy as np


def content(trainer):
    """Return every parameter of network and optimizer, and every table's rows with their slots by id, copied."""
    cells = (trainer.network, trainer.optimizer)
    found = {p.name: np.array(p.asnumpy()) for cell in cells for p in cell.get_parameters()}
    for name, table in trainer.tables.tables.tables.items() if trainer.tables else ():
        rows = np.flatnonzero(table.columns["live"][: table.next_row])
        ids = table.ids_of(rows)
        order = np.argsort(ids)
        found[f"{name} ids"], found[f"{name} rows"] = ids[order], table.store.read(rows[order])
    return found


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)

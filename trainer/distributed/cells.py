"""The collectives as cells and as graph code; built only where there is more than one process."""

from __future__ import annotations

from mindspore import nn, ops


class Gather(nn.Cell):
    """AllGather along axis 0."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.all_gather = ops.AllGather()

    def construct(self, array):
        """Return the arrays of all ranks one after the other."""
        return self.all_gather(array)


class Broadcast(nn.Cell):
    """Broadcast from rank 0."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.from_main = ops.Broadcast(0)

    def construct(self, array):
        """Return the array of rank 0."""
        return self.from_main((array,))[0]


def make_cell(kind: str) -> nn.Cell:
    """Return the cell of a collective: "gather" or "broadcast"."""
    return {"gather": Gather, "broadcast": Broadcast}[kind]()

"""The network of the published models that `benchmarks.fuzz` damages."""

from mindspore import nn

from trainer.embedding import Embedding


class Net(nn.Cell):
    """A table and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(3, name="table")
        self.head = nn.Dense(6, 1)

    def construct(self, ids):
        return self.head(self.table(ids).reshape(ids.shape[0], -1)).reshape(-1)

"""A trainer on a few pages: read it from top to bottom to see how `trainer` works.

    python examples/tiny_trainer.py

`trainer/` is built on four ideas. Each has a section here:

1. Rows come with a position (`trainer/data`, `trainer/streams`): each batch knows where the next batch begins.
2. The compiled program runs one training step many times per call (`trainer/graph`). This is all that "sink" means.
3. One loop trains on finite data and on streams (`trainer/run/loop.py`). Its unit is a chunk: the batches of one call.
4. A snapshot holds the parameters and the position after the last row *trained* (`trainer/checkpoint`). A run that is
   killed and resumed therefore ends with the same bits as an uninterrupted run.

tests/examples/test_tiny_trainer.py compares every bit with `trainer.Trainer`. Left out: mixed precision, gradient
accumulation, metrics, validation, sparse tables, Kafka, several processes and helpful error messages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

Columns = tuple[np.ndarray, ...]  # the inputs and the label of a batch, with the rows on axis 0

# -- 1. Rows with positions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """Where to read next: a batch of an epoch, or a row in a file of a stream."""

    epoch: int = 0
    batch: int = 0
    file: str = ""  # streams only: name of the file
    row: int = 0  # streams only: number of rows of this file already trained on


@dataclass
class Batch:
    """The columns of a batch and the position after its last row."""

    columns: Columns
    after: Position
    ends_epoch: bool = False


class Arrays:
    """Finite data: arrays of the same length, shuffled by (seed, epoch).

    The order of an epoch need not be saved, because seed and epoch determine it. A position is two numbers.
    """

    def __init__(self, columns: Columns, batch_size: int, seed: int = 0) -> None:
        self.columns, self.batch_size, self.seed = columns, batch_size, seed

    def batches(self, position: Position) -> Iterator[Batch]:
        """Yield the batches from `position` to the end of its epoch."""
        rows, size = len(self.columns[0]), self.batch_size
        order = np.random.default_rng([self.seed, position.epoch]).permutation(rows)
        for number in range(position.batch, -(-rows // size)):
            chosen = order[number * size : (number + 1) * size]
            last = (number + 1) * size >= rows
            after = Position(position.epoch + 1) if last else Position(position.epoch, number + 1)
            yield Batch(tuple(column[chosen] for column in self.columns), after, last)


class Folder:
    """A stream of JSON-lines files that appear in a folder, read in order of name.

    A line is {"inputs": [...], "label": [...]}. A batch may begin in one file and end in another. Its position is that
    of its last row. Rows read ahead do not count, so a resumed run does not lose them.
    """

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.folder, self.batch_size = folder, batch_size

    def batches(self, position: Position) -> Iterator[Batch]:
        """Yield all full batches from `position` on; later calls read the other rows."""
        waiting: list[dict[str, list[float]]] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            if path.name < position.file:
                continue
            read = position.row if path.name == position.file else 0
            for number, line in enumerate(path.read_text().splitlines()[read:], read + 1):
                waiting.append(json.loads(line))
                if len(waiting) == self.batch_size:
                    columns = (np.array([row[name] for row in waiting], np.float32) for name in ("inputs", "label"))
                    yield Batch(tuple(columns), Position(file=path.name, row=number))
                    waiting = []


# -- 2. What is compiled -----------------------------------------------------------------------------------------------


class Step(nn.Cell):
    """A training step that returns the loss before the update."""

    def __init__(self, network: nn.Cell, loss: nn.Cell, optimizer: nn.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss, self.optimizer = network, loss, optimizer
        self.value_and_grad = ops.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, inputs, label):
        """Return the loss of a batch."""
        return self.loss(self.network(inputs), label)

    def construct(self, inputs, label):
        """Train on a batch."""
        loss, gradients = self.value_and_grad(inputs, label)
        self.optimizer(gradients)
        return loss


class ManySteps(nn.Cell):
    """Up to K steps in one call: a `while` loop over batches stacked as [K, B, ...].

    A call has a fixed cost of half a millisecond, which the steps share. The results equal those of single calls.
    """

    def __init__(self, step: Step, most: int) -> None:
        super().__init__(auto_prefix=False)
        self.step, self.gather, self.put = step, ops.Gather(), ops.TensorScatterUpdate()
        self.no_losses, self.first = Tensor(np.zeros(most, np.float32)), Tensor(0, mstype.int32)

    def construct(self, count, inputs, label):
        """Train on the first `count` batches; return their losses [K]."""
        losses, index = self.no_losses, self.first
        while index < count:
            loss = self.step(self.gather(inputs, index, 0), self.gather(label, index, 0))
            losses = self.put(losses, ops.reshape(index, (1, 1)), ops.reshape(loss, (1,)))
            index = index + 1
        return losses


# -- 3. The loop -------------------------------------------------------------------------------------------------------


@dataclass
class Chunk:
    """The batches of one call, all of the same shape."""

    batches: list[Batch] = field(default_factory=list)

    def stacked(self, size: int) -> Columns:
        """Return each column stacked to [size, B, ...] and padded with zeros."""
        columns = zip(*(batch.columns for batch in self.batches), strict=True)
        rest = [(0, size - len(self.batches))]
        return tuple(np.pad(np.stack(parts), rest + [(0, 0)] * parts[0].ndim) for parts in columns)


def chunks(batches: Iterator[Batch], most: int) -> Iterator[Chunk]:
    """Group up to `most` consecutive batches of the same shape."""
    chunk = Chunk()
    for batch in batches:
        same = not chunk.batches or len(chunk.batches[0].columns[0]) == len(batch.columns[0])
        if len(chunk.batches) == most or not same:
            yield chunk
            chunk = Chunk()
        chunk.batches.append(batch)
    if chunk.batches:
        yield chunk


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items while a thread reads the next one; only the caller runs graphs."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item


class TinyTrainer:
    """Trains a network with a single input.

    Args:
        network: network of one input, [B, ...].
        loss: loss function of (prediction, label).
        optimizer: optimizer of the network's parameters.
        sink_size: maximum number of steps per call.
        on_chunk: the only hook, called with the trainer after each chunk; returns True to stop.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss: nn.Cell,
        optimizer: nn.Optimizer,
        sink_size: int = 8,
        on_chunk: Callable[[TinyTrainer], bool | None] = lambda trainer: None,
    ) -> None:
        self.sink_size, self.on_chunk = sink_size, on_chunk
        self.step = Step(network, loss, optimizer)
        self.program = ManySteps(self.step, sink_size)
        unique = {id(value): value for value in [*network.get_parameters(), *optimizer.get_parameters()]}
        self.parameters: dict[str, Parameter] = {value.name: value for value in unique.values()}
        self.position, self.global_step, self.losses = Position(), 0, []

    def fit(self, source: Arrays, epochs: int) -> list[float]:
        """Train from the current position to epoch `epochs`; return all steps' losses."""
        while self.position.epoch < epochs:
            if not self._train(source):
                break
        return self.losses

    def online_train(self, stream: Folder) -> list[float]:
        """Train on all new rows of a stream; return the losses before each update."""
        self._train(stream)
        return self.losses

    def _train(self, source: Arrays | Folder) -> bool:
        """Train to the end of an epoch or stream; return False if the hook stopped it."""
        for chunk in ahead(chunks(source.batches(self.position), self.sink_size)):
            tensors = [Tensor.from_numpy(column) for column in chunk.stacked(self.sink_size)]
            count = len(chunk.batches)
            losses = self.program.compile_and_run(Tensor(count, mstype.int32), *tensors)
            self.losses += losses.asnumpy()[:count].tolist()
            self.global_step += count
            self.position = chunk.batches[-1].after
            if self.on_chunk(self):
                return False
        return True

    # -- 4. Snapshots --------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> Path:
        """Write a snapshot atomically: it gets its name only once it is on the disk."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"step_{self.global_step:08d}"
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
        np.savez(unfinished / "parameters.npz", **{n: p.asnumpy() for n, p in self.parameters.items()})
        state = {"step": self.global_step, "position": vars(self.position), "losses": self.losses}
        (unfinished / "state.json").write_text(json.dumps(state))
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in unfinished.iterdir()}
        (unfinished / "manifest.json").write_text(json.dumps(sums))  # last: a folder with a manifest is complete
        for path in [*unfinished.iterdir(), unfinished]:
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(unfinished, target)
        _sync(folder)
        return target

    def load(self, folder: Path) -> bool:
        """Restore the newest undamaged snapshot of a folder; return False without one."""
        for path in sorted(folder.glob("step_*"), reverse=True):
            sums = json.loads((path / "manifest.json").read_text())
            if any(hashlib.sha256((path / name).read_bytes()).hexdigest() != wanted for name, wanted in sums.items()):
                print(f"{path} is damaged; trying the previous snapshot")
                continue
            with np.load(path / "parameters.npz") as arrays:
                for name, parameter in self.parameters.items():
                    parameter.set_data(Tensor(arrays[name]))
            state = json.loads((path / "state.json").read_text())
            self.global_step, self.losses = state["step"], state["losses"]
            self.position = Position(**state["position"])
            return True
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    from mindspore import set_seed

    def make(**options: Any) -> TinyTrainer:
        set_seed(1)
        network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
        return TinyTrainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-2), **options)

    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    data = Arrays((x, (x[:, :2].sum(1, keepdims=True) > 0).astype(np.float32)), batch_size=32)
    whole = make()
    whole.fit(data, epochs=5)
    with tempfile.TemporaryDirectory() as snapshots:
        killed = make(on_chunk=lambda trainer: trainer.global_step >= 70)
        killed.fit(data, epochs=5)
        killed.save(Path(snapshots))
        resumed = make()
        resumed.load(Path(snapshots))
        resumed.fit(data, epochs=5)
    same = all(np.array_equal(p.asnumpy(), resumed.parameters[n].asnumpy()) for n, p in whole.parameters.items())
    print(f"loss {whole.losses[0]:.4f} -> {whole.losses[-1]:.4f} in {whole.global_step} steps")
    print(f"stopped at step {killed.global_step} and resumed: {'the same bits' if same else 'OTHER BITS'}")

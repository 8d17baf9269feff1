"""PLE (H. Tang et al., RecSys 2020).

"Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized Recommendations".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import whole
from ..features import Features
from .layers import Perceptron, check_hidden, flat, flat_width, pooled_embedding, tasks_of
from .mmoe import mixed


class ExtractionLayer(nn.Cell):
    """Task-specific and shared experts, mixed by gates.

    A task's gate sees its own and the shared experts; the shared gate sees all experts. Maps a tuple of float [N,
    width], one per task and the shared one, to a like tuple of the experts' width.

    Args:
        widths: width of each input: one per task, and last the shared one.
        experts: number of experts of each task, and of shared ones.
    """

    def __init__(self, widths: Sequence[int], experts: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.count, self.experts_each = len(widths), experts
        self.experts = nn.CellList([Perceptron(width, hidden) for width in widths for _ in range(experts)])
        seen = [2 * experts] * (self.count - 1) + [self.count * experts]
        gates = [nn.Dense(width, of_gate, has_bias=False) for width, of_gate in zip(widths, seen, strict=True)]
        self.gates = nn.CellList(gates)

    def construct(self, inputs):
        outputs = ()
        for index in range(self.count):
            group = ()
            for number in range(self.experts_each):
                group += (self.experts[index * self.experts_each + number](inputs[index]),)
            outputs += (ops.stack(group, 1),)
        shared = outputs[-1]  # type: ignore[misc]
        mixtures = ()
        for index in range(self.count - 1):
            seen = ops.concat((outputs[index], shared), 1)
            mixtures += (mixed(seen, self.gates[index](inputs[index])),)
        return (*mixtures, mixed(ops.concat(outputs, 1), self.gates[self.count - 1](inputs[self.count - 1])))


class PLE(nn.Cell):
    """Extraction layers; each task's mixture from the last layer feeds its tower.

    Maps the columns of `Features.inputs` to a tuple of logits, float32 [N], in the order of the tasks.

    Args:
        features: the declared columns; there is a task for each label.
        tasks: names of the tasks; None: the labels.
        dim: length of the vectors.
        layers: layers of extraction.
        experts: experts of each task, and shared ones, in each layer.
        expert_hidden: widths of an expert's layers.
        tower_hidden: widths of a task's layers.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        tasks: Sequence[str] | None = None,
        dim: int = 16,
        layers: int = 2,
        experts: int = 2,
        expert_hidden: Sequence[int] = (128, 64),
        tower_hidden: Sequence[int] = (32,),
    ) -> None:
        super().__init__()
        whole("PLE(layers=...)", layers)
        whole("PLE(experts=...)", experts)
        self.tasks = tasks_of(features, "PLE", tasks)
        self.embedding = pooled_embedding(features, dim)
        count = len(self.tasks) + 1
        expert_hidden = check_hidden(expert_hidden)
        widths = [flat_width(self.embedding)] + [expert_hidden[-1]] * (layers - 1)
        self.layers = nn.CellList([ExtractionLayer([width] * count, experts, expert_hidden) for width in widths])
        self.towers = nn.CellList([Perceptron(expert_hidden[-1], tower_hidden, 1) for _ in self.tasks])

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        x = flat(fields, numbers)
        inputs = ()
        for _ in range(len(self.tasks) + 1):
            inputs += (x,)
        for layer in self.layers:
            inputs = layer(inputs)
        logits = ()
        for index in range(len(self.tasks)):
            logits += (self.towers[index](inputs[index]).reshape(-1),)
        return logits

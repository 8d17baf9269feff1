"""PLE (H. Tang et al., RecSys 2020).

"Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized Recommendations".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import whole
from ..features import Features
from .layers import Perceptron, check_hidden, flat, flat_width, pooled_embedding, tasks_of
from .mmoe import mix_experts


class ExtractionLayer(nn.Cell):
    """Task-specific and shared experts, mixed by gates.

    The gate of a task mixes the task's own experts and the shared experts; the shared gate mixes all experts. Maps a
    tuple of float [N, width], one per task and a shared one at the end, to a tuple of the same form with the experts'
    output width.

    Args:
        widths: width of each input, one per task and the shared one at the end.
        experts: number of experts of each task, and number of shared experts.
        hidden: widths of an expert's layers.
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
            mixtures += (mix_experts(seen, self.gates[index](inputs[index])),)
        return (*mixtures, mix_experts(ops.concat(outputs, 1), self.gates[self.count - 1](inputs[self.count - 1])))


class PLE(nn.Cell):
    """Extraction layers followed by a tower for each task.

    A task's tower receives the mixture of the task's gate in the last layer.

    Maps the columns of `Features.inputs` to a tuple of logits, float32 [N], in the order of the tasks.

    Args:
        features: the declared columns; there is a task for each label.
        tasks: names of the tasks; None: the labels.
        dim: length of the embedding vectors.
        layers: number of extraction layers.
        experts: number of experts of each task, and of shared experts, in each layer.
        expert_hidden: widths of an expert's layers.
        tower_hidden: widths of the hidden layers of a tower.
    """

    rows_are_independent = True
    outputs_follow_tasks = True

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

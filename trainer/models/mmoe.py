"""MMoE (J. Ma et al., KDD 2018).

"Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn, ops

from ..checks import whole
from ..features import Features
from .layers import Perceptron, flat, flat_width, pooled_embedding, tasks_of


def mix_experts(experts, weights):
    """Mix experts [N, E, W] with softmax(weights), [N, E], to [N, W]; graph code."""
    return ops.matmul(ops.expand_dims(ops.softmax(weights, -1), 1), experts).reshape(experts.shape[0], -1)


class MMoE(nn.Cell):
    """Shared experts, mixed by a gate for each task: sum of softmax(W x)_i f_i(x).

    Maps the columns of `Features.inputs` to a tuple of logits, float32 [N], in the order of the tasks.

    Args:
        features: the declared columns; there is a task for each label.
        tasks: names of the tasks; None: the labels.
        dim: length of the embedding vectors.
        experts: number of experts.
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
        experts: int = 8,
        expert_hidden: Sequence[int] = (256, 64),
        tower_hidden: Sequence[int] = (32,),
    ) -> None:
        super().__init__()
        whole("MMoE(experts=...)", experts)
        self.tasks = tasks_of(features, "MMoE", tasks)
        self.embedding = pooled_embedding(features, dim)
        width = flat_width(self.embedding)
        self.experts = nn.CellList([Perceptron(width, expert_hidden) for _ in range(experts)])
        self.gates = nn.CellList([nn.Dense(width, experts, has_bias=False) for _ in self.tasks])
        self.towers = nn.CellList([Perceptron(expert_hidden[-1], tower_hidden, 1) for _ in self.tasks])

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        x = flat(fields, numbers)
        outputs = ()
        for expert in self.experts:
            outputs += (expert(x),)
        experts = ops.stack(outputs, 1)
        logits = ()
        for index in range(len(self.tasks)):
            logits += (self.towers[index](mix_experts(experts, self.gates[index](x))).reshape(-1),)
        return logits

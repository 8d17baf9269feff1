"""A training in whose second sunk call rank 1 is killed, inside the sum of a step's dense gradients.

python kill_program.py
"""

import os
import signal

import numpy as np
from mindspore import nn

from tests.trainer.distributed import jobs
from trainer import Trainer

SINK_SIZE, STEP = 8, 13  # the step in whose sum it is killed, the fifth of the second call


def main():
    group = jobs.member()
    exchange, sums = group.all_to_all, []

    def killed(parts, *, in_graph=False):
        sums.append(in_graph)
        if sum(sums) == STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return exchange(parts, in_graph=in_graph)

    if group.rank == 1:
        group.all_to_all = killed
    network = nn.Dense(4, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
    data = {"x": np.ones((64 * group.size * 4, 4), np.float32), "y": np.ones((64 * group.size * 4, 1), np.float32)}
    trainer.fit(data, batch_size=4, sink_size=SINK_SIZE, callbacks=[])


if __name__ == "__main__":
    main()

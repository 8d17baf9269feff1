"""(g) A checkpoint of 1 GB, a third of it weights and two thirds Adam's moments: how long training is held, how long
it takes until it is on the disk for good, how long loading takes; beside `save_checkpoint` and `torch.save`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import OURS, PEERS, Group, Ratio

LAYERS = 4
HOLD, TOTAL, LOAD = "hold, background", "save", "load"
MS_SAVE, MS_LOAD = "ms.save_checkpoint", "ms.load_checkpoint"
TORCH_SAVE, TORCH_LOAD = "torch.save", "torch.load"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    size = 1e8 if quick else 1e9
    names = dict.fromkeys((HOLD, TOTAL, LOAD, MS_SAVE, MS_LOAD), OURS) | dict.fromkeys((TORCH_SAVE, TORCH_LOAD), PEERS)
    ratios = (Ratio(HOLD, MS_SAVE), Ratio(TOTAL, MS_SAVE), Ratio(TOTAL, TORCH_SAVE), Ratio(LOAD, MS_LOAD))
    ratios += (Ratio(LOAD, TORCH_LOAD),)
    return [
        Group("checkpoint", f"checkpoint of {size / 1e9:g} GB", "checkpoint", names, {"bytes": size}, ratios, unit="ms")
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    side = int((options["bytes"] / 3 / 4 / LAYERS) ** 0.5)
    return (Torch if name in (TORCH_SAVE, TORCH_LOAD) else MindSpore)(name, side)


class Timer:
    """A folder to write to, and windows of one piece of work each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))

    def __del__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def window(self) -> dict[str, float]:
        """Do the work once."""
        seconds = self.work()
        return {"seconds": seconds, "steps": 1}


class MindSpore(Timer):
    """Ours and MindSpore's own, over the same trainer."""

    def __init__(self, name: str, side: int) -> None:
        from mindspore import nn

        from trainer import Trainer

        super().__init__(name)
        network = nn.SequentialCell([nn.Dense(side, side, has_bias=False) for _ in range(LAYERS)])
        self.trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params()), run_dir=self.folder)
        self.cell = self.trainer.builder.train_step(self.trainer.builder.options)
        self.number = 0
        if name == LOAD:
            self.trainer.save(self.folder)
        if name == MS_LOAD:
            self._save()
        if name == HOLD:
            self.work()  # the buffers of the first snapshot are made once

    def _save(self) -> None:
        import mindspore as ms

        ms.save_checkpoint(self.trainer.optimizer, str(self.folder / "all.ckpt"))

    def work(self) -> float:
        import mindspore as ms

        began = time.perf_counter()
        if self.name == MS_SAVE:
            self._save()
        elif self.name == MS_LOAD:
            ms.load_checkpoint(str(self.folder / "all.ckpt"), self.trainer.optimizer)
        elif self.name == LOAD:
            self.trainer.load(self.folder)
        else:
            self.trainer.state.progress.global_step += 1
            self.trainer.save(self.folder, background=self.name == HOLD)
        seconds = time.perf_counter() - began
        self.trainer.saver.wait()
        self._tidy()
        return seconds

    def _tidy(self) -> None:
        snapshots = sorted(self.folder.glob("step_*"))
        for old in snapshots[:-1]:
            shutil.rmtree(old)


class Torch(Timer):
    """`torch.save` and `torch.load` of the state dicts of network and optimizer."""

    def __init__(self, name: str, side: int) -> None:
        import torch

        super().__init__(name)
        self.network = torch.nn.Sequential(*[torch.nn.Linear(side, side, bias=False) for _ in range(LAYERS)])
        self.optimizer = torch.optim.Adam(self.network.parameters())
        self.network(torch.from_numpy(np.ones((1, side), np.float32))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if name == TORCH_LOAD:
            self._save()

    def _save(self) -> None:
        import torch

        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.folder / "all.pt")

    def work(self) -> float:
        import torch

        began = time.perf_counter()
        if self.name == TORCH_SAVE:
            self._save()
        else:
            state = torch.load(self.folder / "all.pt")
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        return time.perf_counter() - began

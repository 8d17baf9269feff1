"""Learning rate schedules with warm-up, computed inside the step's graph."""

from __future__ import annotations

import math
from typing import Any

from mindspore import Tensor, dtype, nn, ops

from .. import checks

KINDS = ("constant", "linear", "cosine", "inverse_sqrt", "one_cycle")
_ONE_CYCLE_START, _ONE_CYCLE_END = 25.0, 1e4  # usual divisors of the peak (Smith and Topin 2018)


class Schedule(nn.learning_rate_schedule.LearningRateSchedule):
    """A learning rate that grows to `peak` during the warm-up, then follows `kind`.

    Let s be the step, counted from 0, w the warm-up steps, T the total steps, and x = (s - w) / (T - w), limited to
    [0, 1]. After the warm-up the rate is:

    - "constant": peak;
    - "linear": peak + (floor - peak) x;
    - "cosine": floor + (peak - floor) (1 + cos(pi x)) / 2 (Loshchilov and Hutter 2017, eq. 5);
    - "inverse_sqrt": peak sqrt(w / s) (Vaswani et al. 2017, section 5.3), never below floor;
    - "one_cycle": down from peak to peak / 10^4 along a cosine (Smith and Topin 2018).

    During the warm-up, "one_cycle" grows from peak / 25 to peak along a cosine. All other kinds grow linearly from
    peak / w to peak (Goyal et al. 2017, section 2.2).

    Args:
        kind: one of the names above.
        peak: the highest rate.
        total_steps: optimizer steps until the rate stays constant; not needed by "constant" and "inverse_sqrt".
        warmup_steps: optimizer steps of the warm-up. Default: 1000 for "inverse_sqrt", 30 % of `total_steps` for
            "one_cycle", 0 for other kinds.
        floor: the rate at the end; not used by "constant" and "one_cycle".
        steps_per_epoch: if given, `total_steps` and `warmup_steps` are numbers of epochs.

    Raises:
        ConfigurationError: an argument is invalid, or the warm-up takes all of `total_steps` or more.
    """

    def __init__(
        self,
        kind: str,
        peak: float,
        total_steps: int | None = None,
        warmup_steps: int | None = None,
        floor: float = 0.0,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.kind = checks.choice("Schedule(kind=...)", kind, KINDS)
        self.peak = checks.number("Schedule(peak=...)", peak, above=0)
        self.floor = checks.number("Schedule(floor=...)", floor, minimum=0.0)
        factor = checks.whole("Schedule(steps_per_epoch=...)", steps_per_epoch, optional=True) or 1
        needs_total = kind not in ("constant", "inverse_sqrt")
        total = checks.whole("Schedule(total_steps=...)", total_steps, optional=not needs_total)
        warmup = checks.whole("Schedule(warmup_steps=...)", warmup_steps, 0, optional=True)
        self.total: Any = None if total is None else total * factor
        default = 1000 if kind == "inverse_sqrt" else 0  # a number of steps, even if the arguments count epochs
        if kind == "one_cycle" and self.total is not None:
            default = max(1, round(0.3 * self.total))
        self.warmup = default if warmup is None else warmup * factor
        if self.total is not None and self.warmup >= self.total:
            checks.refuse("Schedule(warmup_steps=...)", f"less than the {self.total} steps in all", self.warmup)
        if kind == "inverse_sqrt" and not self.warmup:
            checks.refuse("Schedule(warmup_steps=...)", "at least 1 step for kind 'inverse_sqrt'", warmup_steps)

    def construct(self, global_step: Tensor) -> Tensor:
        """Return the rate for the update that follows `global_step` updates, float32."""
        step = ops.cast(global_step, dtype.float32)
        rate = self._after_warmup(step)
        if self.warmup == 0:
            return rate
        share = ops.minimum((step + 1.0) / self.warmup, 1.0)
        start = self.peak * share
        if self.kind == "one_cycle":
            first = self.peak / _ONE_CYCLE_START
            start = first + (self.peak - first) * (1.0 - ops.cos(math.pi * ops.minimum(step / self.warmup, 1.0))) / 2.0
        return ops.select(step < self.warmup, start, rate)

    def _after_warmup(self, step: Tensor) -> Tensor:
        if self.kind == "constant":
            return 0.0 * step + self.peak
        if self.kind == "inverse_sqrt":
            return ops.maximum(self.peak * ops.sqrt(self.warmup / ops.maximum(step, 1.0)), self.floor)
        share = ops.clip_by_value((step - self.warmup) / (self.total - self.warmup), 0.0, 1.0)
        if self.kind == "linear":
            return self.peak + (self.floor - self.peak) * share
        floor = self.peak / _ONE_CYCLE_END if self.kind == "one_cycle" else self.floor
        return floor + (self.peak - floor) * (1.0 + ops.cos(math.pi * share)) / 2.0

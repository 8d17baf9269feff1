"""Define the search methods of a sweep: grid, random and Optuna."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from ..checks import require
from .sweep_plan import Plan, Range, Trial, higher_is_better, measurements


class Grid:
    """Search of all combinations; the last path varies fastest."""

    def __init__(self, plan: Plan, trials: Sequence[Trial]) -> None:
        self.plan = plan
        self.combinations = list(itertools.product(*plan.vary.values())) if plan.search == "grid" else []

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values of trial `number`, or None if all were tried."""
        if number >= len(self.combinations):
            return None
        return dict(zip(self.plan.vary, self.combinations[number], strict=True))

    def is_hopeless(self, trial: Trial, step: int, loss: float) -> bool:
        """Return whether to stop a trial early, given its latest loss; lower is better."""
        return False

    def ended(self, trial: Trial, loss: float | None) -> None:
        """Record the result of a trial."""


class Random(Grid):
    """Independent random draws, which depend only on the seed and the trial number."""

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return random values for trial `number`."""
        generator = random.Random(f"{self.plan.seed}/{number}")
        return {
            path: values.draw(generator) if isinstance(values, Range) else generator.choice(values)
            for path, values in self.plan.vary.items()
        }


class Optuna(Grid):
    """Search by Optuna's TPE sampler and median pruner; earlier trials are included."""

    def __init__(self, plan: Plan, trials: Sequence[Trial]) -> None:
        super().__init__(plan, trials)
        optuna = require("optuna", "search 'optuna' needs Optuna", "sweep")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=2) if plan.prune else optuna.pruners.NopPruner()
        # with the unchanged seed, a resumed sweep would repeat the values of its first trials
        sampler = optuna.samplers.TPESampler(seed=plan.seed + len(trials))
        self.study = optuna.create_study(sampler=sampler, pruner=pruner)
        self.distributions = {path: _distribution(values) for path, values in plan.vary.items()}
        self.optuna_trials: dict[int, Any] = {}
        for trial in trials:
            if trial.state == "waiting":
                self.study.enqueue_trial(trial.values)
                self.optuna_trials[trial.number] = self.study.ask(self.distributions)
            elif trial.value is not None and trial.state != "failed":
                sign = -1.0 if higher_is_better(trial, plan) else 1.0
                curve = {step: sign * value for step, value in measurements(trial.folder, plan.monitor)}
                pruned = trial.state == "pruned"
                ended = optuna.trial.create_trial(
                    state=optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE,
                    params=trial.values,
                    distributions=self.distributions,
                    value=curve[max(curve)] if pruned and curve else sign * trial.value,
                    intermediate_values=curve,
                )
                self.study.add_trial(ended)

    def propose(self, number: int) -> dict[str, Any] | None:
        """Return the values that the study suggests next."""
        self.optuna_trials[number] = self.study.ask(self.distributions)
        return dict(self.optuna_trials[number].params)

    def is_hopeless(self, trial: Trial, step: int, loss: float) -> bool:
        """Return whether the pruner ends the trial, given its latest loss."""
        optuna_trial = self.optuna_trials[trial.number]
        optuna_trial.report(loss, step)
        return bool(optuna_trial.should_prune())

    def ended(self, trial: Trial, loss: float | None) -> None:
        """Report the result of a trial to the study."""
        import optuna

        states = {"pruned": optuna.trial.TrialState.PRUNED, "done": optuna.trial.TrialState.COMPLETE}
        state = states.get("" if loss is None else trial.state, optuna.trial.TrialState.FAIL)
        self.study.tell(self.optuna_trials[trial.number], loss if state == states["done"] else None, state=state)


def _distribution(values: Any) -> Any:
    import optuna

    if not isinstance(values, Range):
        return optuna.distributions.CategoricalDistribution(values)
    kind: Any = optuna.distributions.IntDistribution if values.is_whole else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)


SEARCHES: dict[str, Callable[[Plan, Sequence[Trial]], Grid]] = {"grid": Grid, "random": Random, "optuna": Optuna}

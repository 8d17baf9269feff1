"""Windows in snapshots of version 0.1, which knew the four binary metrics and the AUC of groups alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .binary_metrics import below


def is_old(values: Mapping[str, Any]) -> bool:
    """Return whether a snapshot's values of the windows are of that version."""
    return "sums" in values


def upgraded(
    values: Mapping[str, Any], arrays: Mapping[str, np.ndarray], groups: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return values and arrays as `PrequentialMetrics` with the defaults for a binary target has them.

    Args:
        values: of the snapshot.
        arrays: of the snapshot.
        groups: columns of groups that the present windows read; one, where the snapshot has groups.
    """
    kept = {f"0.{name}": array for name, array in arrays.items() if name.partition(".")[0] in values["sums"]}
    kept |= {name: array for name, array in arrays.items() if name.startswith("buffer.")}
    metrics: list[list[Any]] = [["", dict(values["sums"])]]
    if values["grouped"] and len(groups) == 1:
        slices = {}
        for horizon, names in values["groups"].items():
            slices[horizon] = {"slices": [[name, {"nan_seen": False}] for name in names], "known": list(names)}
            for name, array in below(f"groups.{horizon}.", arrays).items():
                kept[f"1.{horizon}.{name}"] = array
        known = list(dict.fromkeys(name for names in values["groups"].values() for name in names if name != "other"))
        for state in slices.values():
            state["known"] = known
        metrics.append([f"auc/{groups[0]}", slices])
    read = list(groups) if values["grouped"] else []
    return {"metrics": metrics, "counts": values["counts"], "groups": read}, kept

"""`trainer show-loop`: the training loop, with callbacks in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callbacks import CallbackList, History, ProgressBar, adapt

from ... import checks
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.instantiate import instantiate
from ..configuration.object_spec import ObjectSpec

# (indent, line, hook): the callbacks of a hook are listed below it
_LOOP: tuple[tuple[int, str, str | None], ...] = (
    (0, "setup", "setup"),
    (0, "restore the snapshot to go on from, if any", None),
    (1, "on_load_checkpoint", "on_load_checkpoint"),
    (0, "on_train_begin", "on_train_begin"),
    (0, "until {limits} or a stop is asked for:", None),
    (1, "on_train_epoch_begin", "on_train_epoch_begin"),
    (1, "for each chunk of {chunk}:", None),
    (2, "on_train_step_begin", "on_train_step_begin"),
    (2, "train the chunk: {step}", None),
    (2, "when a window closes:", "window"),
    (3, "on_window_end", "on_window_end"),
    (3, "on_drift, when a detector fires", "on_drift"),
    (2, "on_train_step_end", "on_train_step_end"),
    (2, "validate, {validation}:", "validation"),
    (3, "on_eval_begin", "on_eval_begin"),
    (3, "for each batch:", None),
    (4, "on_eval_step_begin", "on_eval_step_begin"),
    (4, "evaluate the batch", None),
    (4, "on_eval_step_end", "on_eval_step_end"),
    (3, "on_eval_end", "on_eval_end"),
    (2, "on_train_epoch_end, after the last chunk", "on_train_epoch_end"),
    (2, "on_checkpoint", "on_checkpoint"),
    (3, "on_save_checkpoint, when a snapshot has become durable", "on_save_checkpoint"),
    (0, "on_train_end", "on_train_end"),
    (0, "on_exception, when one leaves the loop", "on_exception"),
    (0, "teardown", "teardown"),
)


def describe(config: ExperimentConfig) -> str:
    """Return the loop of an experiment as text; creates its callbacks only."""
    callbacks = [adapt(instantiate(spec)) for spec in config.callbacks] or [ProgressBar()]
    if not any(isinstance(callback, History) for callback in callbacks):
        callbacks.append(History())
    ordered = CallbackList(callbacks)
    online = config.data.train is None and config.data.stream is not None
    options = config.online if online else config.fit
    if options.get("max_time") is not None:
        options = {**options, "max_time": f"{checks.seconds('max_time', options['max_time']):g}"}
    bounds = {"epochs": "epoch", "max_steps": "step", "max_time": "second", "idle_timeout": "idle second"}
    limits = [f"{options[name]} {unit}s" for name, unit in bounds.items() if options.get(name) is not None]
    words = {
        "limits": " or ".join(limits) or ("the stream ends" if online else "1 epoch"),
        "chunk": _chunk(options),
        "step": _step(config.trainer),
        "validation": _cadence(options.get("valid_every")),
    }
    left_out = {"on_train_epoch_begin", "on_train_epoch_end", "validation"} if online else {"window"}
    if config.data.valid is None:
        left_out.add("validation")
    lines = []
    skipping: int | None = None  # indent of a line that is left out with all below it
    for indent, text, hook in _LOOP:
        if skipping is not None and indent > skipping:
            continue
        skipping = indent if hook in left_out else None
        if hook in left_out:
            continue
        lines.append("    " * indent + text.format(**words))
        bound = ordered.bound(hook) if hook is not None and hook not in ("window", "validation") else []
        lines += ["    " * indent + f"  - {_label(method)}" for method in bound]
    return "\n".join(lines)


def _chunk(options: Mapping[str, Any]) -> str:
    size = options.get("sink_size", -1)
    if not options.get("dataset_sink_mode", True) or size == 1:
        return "one step"
    return f"up to {size} steps" if size > 0 else "as many steps as fit one call"


def _step(options: Mapping[str, Any]) -> str:
    parts = [f"precision {options.get('amp_level', 'O0')}", "forward, backward"]
    accumulated = options.get("gradient_accumulation_steps", 1)
    if accumulated > 1:
        parts[1] += f" of {accumulated} micro-batches"
    if options.get("clip_value") is not None:
        parts.append(f"clip entries at {options['clip_value']}")
    if options.get("clip_norm") is not None:
        parts.append(f"clip norm at {options['clip_norm']}")
    return ", ".join([*parts, "update"])


def _cadence(every: Any) -> str:
    if every is None:
        return "after the last chunk of an epoch"
    if isinstance(every, ObjectSpec):
        return f"every {', '.join(f'{value} {name}' for name, value in every.init_args.items())}"
    return f"every {every} steps"


def _label(method: Any) -> str:
    owner = getattr(method, "__self__", None)
    if owner is None:  # a function of a LambdaCallback
        return getattr(method, "__qualname__", repr(method))
    summary = (method.__doc__ or "").strip().split("\n")[0].rstrip(".")
    return f"{type(owner).__name__}: {summary}" if summary else type(owner).__name__

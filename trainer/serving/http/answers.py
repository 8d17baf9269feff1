"""JSON answers to prediction requests."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from ...metrics.predictions import named_classes
from ..published import Current
from .batching import ScoredRequest
from .request_rows import column_and_reason
from .service_call import Reply


def predict_reply(scored: ScoredRequest, request_id: str, *, logits: bool) -> Reply:
    """Return the answer to a prediction request.

    Rows without an answer are null and are listed under "errors". The status is 422 if no row was answered. For a label
    with named classes, "prediction" has the most likely class of each row and "classes" lists all classes in order. For
    several tasks, "prediction" and "logits" have the values of each task by name.

    Args:
        scored: outputs of the model for the request.
        request_id: id of the request, which the answer repeats.
        logits: whether to add the network's raw outputs to the probabilities.
    """
    if scored.tasks:
        values = _answers_of_tasks(scored, logits)
    else:
        values = {name: _with_nulls(scored, values) for name, values in named_outputs(scored, logits).items()}
    classes = {"classes": scored.classes} if scored.classes else {}
    body = {**version_json(scored.current), **classes, **values, "errors": _errors(scored)}
    reply = Reply(200 if len(scored.good) else 422, orjson.dumps({**body, "request_id": request_id}))
    return with_id(reply, request_id)


def with_id(reply: Reply, request_id: str) -> Reply:
    """Return a copy of a reply with the request's id in the header X-Request-Id."""
    return replace(reply, headers={**reply.headers, "X-Request-Id": request_id})


def named_outputs(scored: ScoredRequest, logits: bool = True) -> dict[str, np.ndarray]:
    """Return the outputs for the good rows by name."""
    columns: dict[str, np.ndarray] = {}
    if scored.tasks:
        columns = {task: prediction for task, (prediction, _) in scored.tasks.items()}
        columns |= {f"{task}_logits": output for task, (_, output) in scored.tasks.items() if logits}
        return columns | scored.further
    if scored.probability is not None:
        if scored.classes:
            columns["prediction"] = named_classes(scored.probability, scored.classes)["prediction"]
        columns["probability"] = scored.probability
    if logits or scored.probability is None:
        columns["logits" if scored.probability is not None else "prediction"] = (scored.outputs or (np.zeros(0),))[0]
    for number, output in enumerate(scored.outputs[1:], 1):
        columns[f"output_{number}"] = output
    return columns


def _answers_of_tasks(scored: ScoredRequest, logits: bool) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "prediction": {task: _with_nulls(scored, prediction) for task, (prediction, _) in scored.tasks.items()}
    }
    if logits:
        answers["logits"] = {task: _with_nulls(scored, output) for task, (_, output) in scored.tasks.items()}
    return answers | {name: _with_nulls(scored, output) for name, output in scored.further.items()}


def version_json(current: Current) -> dict[str, Any]:
    """Return a version's number, step and ages in seconds, for JSON."""
    now, event_time = time.time(), current.event_time
    return {
        "version": current.version,
        "step": current.step,
        "age_seconds": round(now - current.time, 3),
        "event_age_seconds": None if event_time is None else round(now - event_time, 3),
    }


def _errors(scored: ScoredRequest) -> list[dict[str, Any]]:
    named = ((row, *column_and_reason(text)) for row, text in sorted(scored.bad.items()))
    return [{"row": row, "status": 422, "column": column, "reason": reason} for row, column, reason in named]


def _with_nulls(scored: ScoredRequest, values: np.ndarray) -> list[Any]:
    answers: list[Any] = [None] * scored.request.count
    for row, value in zip(scored.good.tolist(), values.tolist(), strict=True):
        answers[row] = value
    return answers

"""Describes the server in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...streams.formats.column import Column
from ..published_items import PublishedItems
from .service_call import JSON, ServeOptions

_NUMBER = {"type": ["number", "null"]}
_TYPES = {"b": "boolean", "i": "integer", "u": "integer", "f": "number", "U": "string"}


def openapi_document(
    options: ServeOptions,
    fields: Mapping[str, Column],
    items: PublishedItems | None = None,
    tasks: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the OpenAPI document of a server.

    Args:
        options: options of the server.
        fields: raw columns of the rows, by name.
        items: items of the served version, or None.
        tasks: names of the tasks of the served version; empty without tasks.
    """
    fields = {name: column for name, column in fields.items() if items is None or name not in items.training_columns}
    row = _object({name: _value(column) for name, column in fields.items()})
    rows = {"type": "array", "items": row}
    columns = _object({name: {"type": "array", "items": _value(column)} for name, column in fields.items()})
    logits = {"type": "boolean", "default": False}
    keyed = [
        {**_object({key: form, "logits": logits}), "required": [key]}
        for key, form in (("rows", rows), ("columns", columns))
    ]
    forms = {"anyOf": [*keyed, rows, row]}
    predict = {
        "summary": "Predictions for rows",
        "description": f"Up to {options.request_rows} rows and {options.body_bytes} bytes. Bad rows are named under "
        '"errors" and are null in the predictions; all other rows are answered.',
        "parameters": [{"name": "logits", "in": "query", "schema": {"type": "boolean"}}],
        "requestBody": {"required": True, "content": {JSON: {"schema": forms}}},
        "responses": {
            "200": _answer("Predictions", {JSON: {"schema": _prediction(tasks)}}),
            "422": _answer("No row could be answered", {JSON: {"schema": _prediction(tasks)}}),
            **{status: _answer(text) for status, text in _REFUSALS.items()},
        },
    }
    infer = "Predictions in the Open Inference Protocol, version 2"
    gets = {
        "/healthz": "Whether the process answers",
        "/readyz": "Version served, its age, and why a newer one is not served",
        "/metrics": "Counters for Prometheus",
        "/v2": "The server's metadata",
        f"/v2/models/{options.name}": "The model's inputs and outputs",
        f"/v2/models/{options.name}/ready": "As /readyz",
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": options.name, "version": "1"},
        "paths": {
            "/predict": {"post": predict},
            f"/v2/models/{options.name}/infer": {"post": {"summary": infer, "responses": {"200": _answer("Tensors")}}},
            **{path: {"get": {"summary": text, "responses": {"200": _answer("OK")}}} for path, text in gets.items()},
        },
    }
    if items is not None:
        user = {name: _value(column) for name, column in fields.items() if name in items.user_columns}
        document["paths"]["/recommend"] = {"post": _recommend(user, items.history is not None)}
    if options.token is not None:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}]
    return document


def _recommend(user: Mapping[str, Any], takes_history: bool) -> dict[str, Any]:
    history = {"type": "array", "items": _ID, "description": "alternative to user; these items are not recommended"}
    form = {
        "user": _object(user),
        **({"history": history} if takes_history else {}),
        "k": {"type": "integer", "minimum": 1, "default": 10},
        "without": {"type": "array", "items": _ID, "description": "ids to leave out"},
        "filter": {
            "type": "object",
            "description": "column of the items -> accepted value, or list of accepted values",
        },
    }
    needed: dict[str, Any] = {"required": ["user"]}
    if takes_history:
        needed = {"oneOf": [{"required": ["user"]}, {"required": ["history"]}]}
    item = _object({"id": _ID, "score": {"type": "number"}})
    answer = _object({"version": {"type": "integer"}, "items": {"type": "array", "items": item}})
    return {
        "summary": "The best items for a user, of all items of the version",
        "requestBody": {"required": True, "content": {JSON: {"schema": {**_object(form), **needed}}}},
        "responses": {
            "200": _answer("Items, best first; fewer than k if fewer are left", {JSON: {"schema": answer}}),
            "404": _answer("The version was published without items"),
            "422": _answer("The user's row violates the features' declaration"),
            **{status: _answer(text) for status, text in _REFUSALS.items()},
        },
    }


_ID = {"type": ["integer", "string"]}
_REFUSALS = {
    "400": "The body has none of the accepted formats",
    "401": "No token, or a wrong one",
    "413": "Too many rows or bytes",
    "415": "Unsupported media type",
    "429": "Too many rows wait; see Retry-After",
    "503": "Nothing has been published yet, or the server is shutting down",
    "504": "No answer in time",
}


def _answer(text: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": text} | ({"content": content} if content else {})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _value(column: Column) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": _TYPES[column.dtype.kind]}
    if column.coerce or column.default is not None:
        kind = {"type": [kind["type"], "null"] if not column.coerce else ["number", "string", "null"]}
    for name, bound in (("minimum", column.minimum), ("maximum", column.maximum)):
        if bound is not None:
            kind[name] = bound
    for _ in column.shape:
        kind = {"type": "array", "items": kind}
    return kind


def _prediction(tasks: Sequence[str]) -> dict[str, Any]:
    whole, numbers = {"type": "integer"}, {"type": "array", "items": _NUMBER}
    text, optional_text = {"type": "string"}, {"type": ["string", "null"]}
    error = _object({"row": whole, "status": whole, "column": optional_text, "reason": text})
    ages = {"age_seconds": {"type": "number"}, "event_age_seconds": _NUMBER}
    names = {"type": "array", "items": {"type": ["string", "number", "null"]}}  # the classes of a label
    answers = {"prediction": names, "classes": names}
    answers |= {"probability": numbers, "logits": numbers, "errors": {"type": "array", "items": error}}
    if tasks:
        answers |= dict.fromkeys(("prediction", "logits"), _object(dict.fromkeys(tasks, numbers)))
    return _object({"version": whole, "step": whole, **ages, **answers})

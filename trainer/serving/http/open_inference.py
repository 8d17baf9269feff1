"""The Open Inference Protocol, version 2: named tensors as JSON.

See https://github.com/kserve/open-inference-protocol. A request with a bad row is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from ...checks import is_number, is_whole
from .answers import named_outputs
from .batching import ScoredRequest
from .request_rows import RequestRows, RowReader, column_and_reason
from .service_call import RefusalError, Reply

_TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def rows_of_infer(body: bytes) -> RequestRows:
    """Return an inference request's rows; raise RefusalError if the body is invalid."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusalError(400, f"the body is not JSON: {error}; tensors as binary data are not accepted") from None
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(tensor, dict) for tensor in inputs):
        raise RefusalError(400, '"inputs" takes a list of tensors {"name", "shape", "datatype", "data"}')
    names = [tensor.get("name") for tensor in inputs]
    if any(names.count(name) > 1 or not isinstance(name, str) for name in names):
        raise RefusalError(400, f"each input needs a different name, a string; received {names}")
    outputs = request.get("outputs") or []
    if not isinstance(outputs, list) or not all(
        isinstance(tensor, dict) and isinstance(tensor.get("name"), str) for tensor in outputs
    ):
        raise RefusalError(400, f'"outputs" takes a list of {{"name": string}}; received {outputs!r}')
    columns = {tensor["name"]: _tensor(tensor) for tensor in inputs}
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise RefusalError(400, f"inputs need the same first dimension, at least 1; received {counts}")
    output_names = tuple(tensor["name"] for tensor in outputs)
    count, name = next(iter(counts.values())), request.get("id")
    return RequestRows(count, table=columns, tensors=True, outputs=output_names, id=name)


def _tensor(tensor: dict[str, Any]) -> Any:
    name, shape, kind = tensor["name"], tensor.get("shape"), tensor.get("datatype")
    if not isinstance(shape, list) or not shape or not all(is_whole(n) and n >= 0 for n in shape):
        raise RefusalError(400, f"input {name!r}: shape takes a list of whole numbers; received {shape!r}")
    if not isinstance(kind, str) or (kind != "BYTES" and kind not in _TYPES):
        raise RefusalError(400, f"input {name!r}: datatype takes BYTES, {', '.join(_TYPES)}; received {kind!r}")
    try:
        values = _to_array(tensor.get("data"), kind).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise RefusalError(400, f"input {name!r}: data are not {kind} values of shape {shape}") from None
    return values.tolist() if kind == "BYTES" else values


def _to_array(data: Any, kind: str) -> np.ndarray:
    """Return a tensor's data as an array; null in text and floats means missing."""
    if not isinstance(data, list):
        raise TypeError("data take a list")
    if kind == "BYTES":
        texts = np.array(data, object)
        if not all(isinstance(value, str | None) for value in texts.ravel()):
            raise TypeError("BYTES hold strings")
        return texts
    array, target = np.array(data), np.dtype(_TYPES[kind])
    if array.dtype.kind == "f" and target.kind in "iu":  # NumPy turns integers below and above 2**63 into floats
        numbers = np.array(data, object)
        array = numbers.astype(target) if all(map(is_whole, numbers.ravel())) else array
    if array.dtype.kind == "O" and target.kind == "f" and all(n is None or is_number(n) for n in array.ravel()):
        array = array.astype(np.float64)
    if array.dtype.kind not in {"b": "b", "i": "iuf", "u": "iuf", "f": "iuf"}[target.kind]:  # accepted kinds of numbers
        raise TypeError(f"{kind} does not hold {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(target)
    exact = not np.isinf(values).any() if target.kind == "f" else np.array_equal(values, array)
    if not exact:
        raise OverflowError(f"{kind} does not hold all of the values")
    return values


def infer_reply(scored: ScoredRequest, name: str) -> Reply:
    """Return the answer to an inference request.

    Raises:
        RefusalError: a row is bad (status 422), or an unknown output is requested (400).
    """
    if scored.bad:
        row, text = min(scored.bad.items())
        raise RefusalError(422, f"row {row}: {text}", column=column_and_reason(text)[0])
    outputs = named_outputs(scored)
    requested = scored.request.outputs or tuple(outputs)
    for output in requested:
        if output not in outputs:
            raise RefusalError(400, f"outputs are {', '.join(outputs)}; received {output!r}")
    tensors = [
        {
            "name": output,
            "datatype": _datatype(outputs[output].dtype),
            "shape": list(outputs[output].shape),
            "data": outputs[output].ravel().tolist(),
        }
        for output in requested
    ]
    body: dict[str, Any] = {"model_name": name, "model_version": str(scored.current.version), "outputs": tensors}
    if scored.classes:
        body["parameters"] = {"classes": list(scored.classes)}
    if scored.request.id is not None:
        body["id"] = scored.request.id
    return Reply(200, orjson.dumps(body))


def _datatype(dtype: np.dtype) -> str:
    return "BYTES" if dtype.kind == "U" else _NAMES.get(dtype.name, "FP32")


def model_metadata(name: str, version: int, reader: RowReader, outputs: Mapping[str, np.dtype]) -> dict[str, Any]:
    """Return a model's metadata: datatypes and shapes, with -1 for any length."""
    inputs = [
        {
            "name": column,
            "datatype": _datatype(field.dtype),
            "shape": [-1, *(-1 if n is None else n for n in field.shape)],
        }
        for column, field in reader.fields.items()
    ]
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "mindspore_mindir",
        "inputs": inputs,
        "outputs": [{"name": output, "datatype": _datatype(dtype), "shape": [-1]} for output, dtype in outputs.items()],
    }

"""Exports a network to ONNX, with table rows as inputs.

The ONNX graph takes any batch size if possible. MindSpore exports a graph for a single size, so the network is exported
for two sizes. If the two graphs differ only in constants that follow from the size, these constants are replaced by
values that fit any size. Running onnxruntime with other sizes verifies the result.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore as ms
import numpy as np

from ..embedding.layers.network_tables import SparseTables
from ..errors import ConfigurationError
from ..mindspore_internals.messages import main_message
from .graph_export import exportable, plain_folder

if TYPE_CHECKING:
    import onnx
    from mindspore import nn

SIZES = (61, 67)  # primes, unlikely to be dimensions of the network itself
_REFUSED = re.compile(r"key (\w+) in convert map|[Oo]perator (\w+) is not")  # the operator in MindSpore's error
_TO_THE_END = 2**31 - 1  # as the end of an ONNX Slice: up to the end of the axis
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Equal", "Greater", "Less", "And", "Or", "Max", "Min"})

Inputs = Mapping[str, np.ndarray]


class OnnxGraph(NamedTuple):
    """A checked ONNX graph."""

    content: bytes  # the file
    batch: int | None  # batch size; None if the graph takes any number of rows
    difference: float  # largest difference from the expected outputs; see `onnx_graph`
    rows: int  # number of rows compared


class Network(NamedTuple):
    """A network to export."""

    cell: nn.Cell
    tables: SparseTables | None
    names: Sequence[str]  # names of its inputs
    outputs: Sequence[str]  # names of its outputs
    blank: Callable[[int], Sequence[np.ndarray]]  # returns a batch with the given number of rows for `export_network`
    cast: bool  # whether outputs are cast to float32
    by_row: bool  # whether the first axis of every input is the batch


def onnx_graph(network: Network, inputs: Inputs, expected: Sequence[np.ndarray], allowed: float) -> OnnxGraph:
    """Export a network to ONNX, and check its outputs against the expected ones.

    Args:
        network: the network to export.
        inputs: a batch of the network's inputs with row numbers in place of ids, and the tables as "rows.<name>".
        expected: the network's outputs for this batch.
        allowed: largest allowed difference between outputs, relative to the largest expected magnitude if that is
            above 1.

    Raises:
        ConfigurationError: MindSpore cannot export the network, onnxruntime cannot run it, or its answers differ.
    """
    rows = len(expected[0])
    exported = [_export(network, size) for size in SIZES] if network.by_row else []
    if exported and _take_any_size(exported[0], exported[1]):
        # Test with other sizes than those of the exports, because a graph that depends on the batch size fails there.
        sizes = [size for size in (1, 2, rows - 1, rows) if 0 < size <= rows]
        difference = _largest_difference(exported[0], network, inputs, expected, sizes)
        if not isinstance(difference, Exception) and difference <= allowed:
            return OnnxGraph(exported[0].SerializeToString(), None, difference, rows)
    fixed = _export(network, rows)
    difference = _largest_difference(fixed, network, inputs, expected, [rows])
    if isinstance(difference, Exception):
        reason = main_message(str(difference))
        raise ConfigurationError(
            f"export to ONNX: onnxruntime cannot run what MindSpore exported: {reason}; leave ONNX out "
            "by onnx=False (--no-onnx)"
        ) from difference
    if not difference <= allowed:
        raise ConfigurationError(
            f"export to ONNX: onnxruntime's answers differ from the network's by {difference:.3g}, more than "
            f"{allowed:.3g}; leave ONNX out by onnx=False (--no-onnx)"
        )
    return OnnxGraph(fixed.SerializeToString(), rows, difference, rows)


def _export(network: Network, size: int) -> onnx.ModelProto:
    import onnx

    columns = network.blank(size)
    try:
        with (
            exportable(network.cell, network.tables, columns, cast=network.cast) as (step, inputs, described),
            plain_folder(Path(tempfile.gettempdir())) as folder,
        ):
            ms.export(step, *inputs, file_name=f"{folder}/network", file_format="ONNX")
            model = onnx.load(f"{folder}/network.onnx")
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        refused = _REFUSED.search(str(error))
        problem = f"the operator {refused[1] or refused[2]}" if refused else f"this network: {main_message(str(error))}"
        raise ConfigurationError(
            f"export to ONNX: MindSpore {ms.__version__} cannot export {problem}; write the network with other "
            "operators, or leave ONNX out by onnx=False (--no-onnx)"
        ) from error
    _name_inputs(model.graph, network.names, columns)
    for table in described:
        _turn_rows_into_input(model.graph, table)
    _rename(model.graph, dict(zip([value.name for value in model.graph.output], network.outputs, strict=True)))
    _fix_last_element_slices(model.graph)
    _sort(model.graph)
    del model.graph.value_info[:]
    return model


def _name_inputs(graph: onnx.GraphProto, names: Sequence[str], columns: Sequence[np.ndarray]) -> None:
    """Name the inputs after the columns, because the exporter only numbers them."""
    renamed = {}
    for value in graph.input:
        number = re.search(r"(\d+)$", value.name)
        renamed[value.name] = names[int(number[1])] if number is not None and len(names) > 1 else names[0]
    _rename(graph, renamed)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)


def _turn_rows_into_input(graph: onnx.GraphProto, stack: Mapping[str, Any]) -> None:
    """Turn the parameter with a table's rows into an input with any number of rows."""
    from onnx import TensorProto, helper

    rows, places = f"embedding.{stack['name']}.rows", f"embedding.{stack['name']}.places"
    others = [value for value in graph.initializer if value.name not in (rows, places)]
    if len(others) == len(graph.initializer):
        return  # the network does not use the rows of this table
    del graph.initializer[:]
    graph.initializer.extend(others)
    for node in graph.node:  # tables that share ids are exported with one row order, so the position map is an identity
        if places in node.input:
            inputs = [name for name in node.input if name != places]
            node.CopyFrom(helper.make_node("Identity", inputs, list(node.output), name=node.name))
    name = f"rows.{stack['name']}"
    graph.input.append(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"rows of {stack['name']}", stack["dim"]])
    )
    _rename(graph, {rows: name})


def _fix_last_element_slices(graph: onnx.GraphProto) -> None:
    """Fix `x[:, -1]`, which MindSpore exports as an empty slice."""
    from onnx import numpy_helper

    constants = dict(_constants(graph))
    for node in graph.node:
        starts, ends = [constants.get(name) for name in node.input[1:3]] if node.op_type == "Slice" else (None, None)
        if starts is None or ends is None:
            continue
        first, last = numpy_helper.to_array(starts), numpy_helper.to_array(ends)
        fixed_ends = np.where((first == -1) & (last == 0), _TO_THE_END, last).astype(last.dtype)
        ends.CopyFrom(numpy_helper.from_array(fixed_ends, ends.name))


def _sort(graph: onnx.GraphProto) -> None:
    """Sort the nodes topologically; MindSpore puts some casts of constants too late."""
    nodes = list(graph.node)
    producers = {name: number for number, node in enumerate(nodes) for name in node.output}
    ordered: dict[int, None] = {}  # close to the given order, because `_take_any_size` compares graphs in order
    for last in range(len(nodes)):
        pending = [last]
        while pending:
            predecessors = [producers[name] for name in nodes[pending[-1]].input if name in producers]
            missing = [number for number in predecessors if number not in ordered]
            pending += missing
            if not missing:
                ordered.setdefault(pending.pop())
    copies = [type(nodes[number]).FromString(nodes[number].SerializeToString()) for number in ordered]
    del graph.node[:]
    graph.node.extend(copies)


# -- batches of any size ---------------------------------------------------------------------------------------------


def _take_any_size(first: onnx.ModelProto, second: onnx.ModelProto) -> bool:
    """Make `first` accept batches of any size; return False if that is impossible."""
    graph, other = first.graph, second.graph
    if [node.op_type for node in graph.node] != [node.op_type for node in other.node]:
        return False
    uses: dict[str, list[tuple[str, int]]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            uses.setdefault(name, []).append((node.op_type, position))
    for (name, tensor), (_, twin) in zip(_constants(graph), _constants(other), strict=True):
        if not _remove_size(tensor, twin, uses.get(name, [])):
            return False
    for value, twin in zip((*graph.input, *graph.output), (*other.input, *other.output), strict=True):
        dims, others = value.type.tensor_type.shape.dim, twin.type.tensor_type.shape.dim
        for axis, (dim, second_dim) in enumerate(zip(dims, others, strict=True)):
            if dim.dim_value != second_dim.dim_value:
                dim.dim_param = "batch" if dim.dim_value == SIZES[0] else f"{value.name}_{axis}"
    return True


def _constants(graph: onnx.GraphProto) -> list[tuple[str, onnx.TensorProto]]:
    nodes = [node for node in graph.node if node.op_type == "Constant"]
    constants = [(node.output[0], value.t) for node in nodes for value in node.attribute if value.name == "value"]
    return [(value.name, value) for value in graph.initializer] + constants


def _remove_size(tensor: onnx.TensorProto, twin: onnx.TensorProto, uses: Sequence[tuple[str, int]]) -> bool:
    """Make a constant independent of the batch size; return whether that succeeded.

    `twin` is the same constant in the graph of the second size. `uses` has (operator, input position) of each use.
    """
    from onnx import numpy_helper

    array, other = numpy_helper.to_array(tensor), numpy_helper.to_array(twin)
    if array.shape == other.shape and np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
        return True
    if array.shape == other.shape and array.ndim == 1 and array.dtype.kind == "i":
        differs = array != other
        follows = array[differs] * SIZES[1] == other[differs] * SIZES[0]
        if set(uses) == {("Reshape", 1)} and differs.sum() == 1 and follows.all():
            value = 0 if (array == -1).any() else -1  # in Reshape, 0 keeps the length of the axis
        elif set(uses) == {("Slice", 2)} and follows.all():
            value = _TO_THE_END
        elif set(uses) == {("Expand", 1)} and follows.all():
            value = 1  # in Expand, 1 keeps the length of the axis
        else:
            return False
        changed = np.where(differs, value, array)
    elif array.ndim == other.ndim and {operator for operator, _ in uses} <= _ELEMENTWISE:
        # A constant that repeats one number along the batch: keep one element and let the operators broadcast it.
        if array.size == 0 or other.size == 0 or (array != array.flat[0]).any() or (other != array.flat[0]).any():
            return False
        differs = np.array(array.shape) != np.array(other.shape)
        changed = np.full(np.where(differs, 1, array.shape), array.flat[0])
    else:
        return False
    tensor.CopyFrom(numpy_helper.from_array(changed.astype(array.dtype), tensor.name))
    return True


# -- checking --------------------------------------------------------------------------------------------------------


def _largest_difference(
    model: onnx.ModelProto, network: Network, inputs: Inputs, expected: Sequence[np.ndarray], sizes: Sequence[int]
) -> float | Exception:
    """Return the largest relative difference over `sizes`, or the exception raised."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    largest = 0.0
    try:
        onnx.checker.check_model(model)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        input_names = [value.name for value in session.get_inputs()]
        for size in sizes:
            feeds = {name: inputs[name][:size] if name in network.names else inputs[name] for name in input_names}
            for answer, reference in zip(session.run(list(network.outputs), feeds), expected, strict=True):
                if answer.shape != reference[:size].shape:
                    raise ValueError(f"{size} rows have answers of shape {list(answer.shape)}")
                scale = max(1.0, float(np.abs(reference).max(initial=0)))
                errors = np.abs(answer.astype(np.float64) - reference[:size]) / scale
                largest = max(largest, float(errors.max(initial=0)) if not np.isnan(errors).any() else np.inf)
    except Exception as error:  # onnx and onnxruntime define exceptions without a common base
        return error
    return largest

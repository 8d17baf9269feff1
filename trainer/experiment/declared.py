"""What is wrong with the streams and features that a configuration declares; nothing of the user's is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, did_you_mean
from .experiment_config import INIT_KEYS, ExperimentConfig, ObjectSpec
from .instantiate import instantiate, make_features
from .problems import ConfigErrors, Problem, show
from .resolve import UnresolvedError, has_reference, resolve
from .signature import real_signature
from .tree import Node, join


def stream_problems(config: ExperimentConfig) -> list[Problem]:
    """Return what is wrong with paths, schemas and labels of declared streams, and with columns the network lacks."""
    problems: list[Problem] = []
    data = config.data
    for spec in (data.train, data.valid, data.test, data.stream):
        for stream, arguments in _streams(spec):
            problems += _of_path(stream, arguments)
            schema, wrong = _schema(stream, arguments.get("schema"))
            problems += wrong
            if schema is not None and stream is data.stream:
                problems += _of_network(config, stream, schema)
    return problems


def _streams(value: Any) -> Iterator[tuple[ObjectSpec, dict[str, Any]]]:
    """Yield the streams of this package that a value declares, those within others too, with their arguments."""
    if not isinstance(value, ObjectSpec):
        return
    from ..streams.base import Stream

    target = _target(value)
    if isinstance(target, type) and issubclass(target, Stream) and target.__module__.startswith("trainer."):
        signature = real_signature(target)
        names = signature.names() if signature is not None else []
        yield value, {**dict(zip(names, value.args, strict=False)), **value.init_args}
    for argument in (*value.args, *value.init_args.values()):
        yield from _streams(argument)


def _target(spec: ObjectSpec) -> Any:
    try:
        return resolve(spec.class_path)
    except UnresolvedError:  # reported where the configuration is read
        return None


def _of_path(spec: ObjectSpec, arguments: Mapping[str, Any]) -> list[Problem]:
    path = arguments.get("path")
    if not isinstance(path, str) or has_reference(path) or Path(path).exists():
        return []
    message = f"{spec.class_path} takes a folder or file that exists; received {path!r}"
    return [Problem(spec.place, f"{spec.path}.init_args.path", message)]


def _schema(spec: ObjectSpec, declared: Any) -> tuple[Any, list[Problem]]:
    """Return the schema, or None where a function of the user's makes it, and what is wrong with it."""
    from ..streams import Schema
    from ..streams.formats.column import Column

    path = f"{spec.path}.init_args.schema"
    ours = (Schema, Column)
    try:
        if isinstance(declared, ObjectSpec):
            if not all(_target(part) in ours for part in _objects(declared)):
                return None, []
            made = instantiate(declared)
            return (made if isinstance(made, Schema) else None), []
        if not isinstance(declared, Mapping) or any(_objects(declared)):
            return None, []
        accepted = set(inspect.signature(Schema).parameters)
        for name in declared:
            if name not in accepted:
                return None, [Problem(spec.place, path, f"Schema takes no {name!r}{did_you_mean(name, accepted)}")]
        return Schema(**declared), []
    except ConfigErrors as errors:
        return None, errors.problems
    except (ConfigurationError, TypeError) as error:
        return None, [Problem(spec.place, path, str(error))]


def _objects(value: Any) -> Iterator[ObjectSpec]:
    if isinstance(value, ObjectSpec):
        yield value
        value = (*value.args, *value.init_args.values())
    elif isinstance(value, Mapping):
        value = tuple(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from _objects(part)


def _of_network(config: ExperimentConfig, stream: ObjectSpec, schema: Any) -> list[Problem]:
    """Return the arguments of the network that a schema with some of them lacks; without any they go by position."""
    from mindspore import nn

    from ..data.column_checks import arguments_of
    from ..data.ragged import given_names

    network = _target(config.network)
    if not (isinstance(network, type) and issubclass(network, nn.Cell)):
        return []
    least, _, arguments = arguments_of(network)
    columns = list(schema.columns)
    wanted = given_names(arguments[:least], columns)
    missing = [name for name in wanted if name not in columns]
    free = [name for name in columns if name not in (schema.label, schema.event_time)]
    if not missing or (len(missing) == len(wanted) and len(free) >= len(wanted)):
        return []
    hints = "".join(did_you_mean(name, free) for name in missing)
    message = (
        f"{network.__name__}.construct takes {', '.join(wanted)}; the schema has no {', '.join(missing)}, its columns "
        f"are {', '.join(columns)}{hints}"
    )
    return [Problem(stream.place, f"{stream.path}.init_args.schema", message)]


FEATURES_KEYS = ("columns", "label", "weight", "group", "event_time", "label_dtype", "keep")
_ROWS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".arrows", ".feather")
_ARGUMENT = re.compile(r"\w+\((\w+)=")


def is_path_of_rows(text: str) -> bool:
    """Return whether a text names a file or folder of rows, and no class."""
    return text.lower().endswith(_ROWS) or "/" in text or Path(text).is_dir()


def feature_problems(node: Node, path: str, *, together: bool) -> list[Problem]:
    """Return what is wrong with each feature, at the key it is wrong with; else, if `together`, with all of them."""
    columns = node.get("columns")
    assert columns is not None
    assert isinstance(columns.value, tuple)
    problems = [
        problem
        for index, item in enumerate(columns.value)
        for problem in _of_feature(item, join(join(path, "columns"), index))
    ]
    if together and not problems:
        try:
            make_features(node.plain())
        except (ConfigurationError, TypeError) as error:
            problems.append(Problem(node.place, path, str(error)))
    return problems


def _of_feature(node: Node, path: str) -> Iterator[Problem]:
    from ..features import KINDS
    from ..features.features import as_feature

    if not isinstance(node.value, dict):
        yield Problem(node.place, path, f"received {show(node.plain(), path)}; accepts a mapping with kind and name")
        return
    entries = node.value
    kind = None if "kind" not in entries else entries["kind"].node.value
    if kind not in KINDS:
        place = entries["kind"].place if "kind" in entries else node.place
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
        yield Problem(place, join(path, "kind"), f"received {show(kind)}; accepts {', '.join(KINDS)}{hint}")
        return
    accepted = ["kind", *KINDS[kind].__dataclass_fields__]
    unknown = [name for name in entries if name not in accepted]
    for name in unknown:
        message = (
            f"unknown key; a feature of kind {kind} accepts {', '.join(accepted)}{did_you_mean(str(name), accepted)}"
        )
        yield Problem(entries[name].place, join(path, name), message)
    if unknown:
        return
    try:
        as_feature(node.plain())
    except (ConfigurationError, TypeError) as error:
        argument = _ARGUMENT.match(str(error))
        entry = entries.get(argument.group(1)) if argument else None
        place = node.place if entry is None else entry.place
        yield Problem(place, path if entry is None else join(path, argument.group(1)), str(error))


def initial_problems(node: Node, path: str) -> list[Problem]:
    """Return what is wrong with the section `init_from`: a path, or a mapping of `INIT_KEYS`."""
    if node.value is None or isinstance(node.value, str):
        return []
    if not isinstance(node.value, dict):
        accepted = f"a path, or a mapping with the keys {', '.join(INIT_KEYS)}"
        return [Problem(node.place, path, f"received {show(node.plain())}; accepts {accepted}")]
    words = {"path": (str, "a path"), "parameter_map": (dict, "a mapping of names"), "strict": (bool, "true or false")}
    problems = [] if node.get("path") is not None else [Problem(node.place, join(path, "path"), "is missing")]
    for key, entry in node.value.items():
        if key not in words:
            message = f"unknown key; accepts {', '.join(INIT_KEYS)}{did_you_mean(str(key), INIT_KEYS)}"
            problems.append(Problem(entry.place, join(path, key), message))
        elif entry.node.value is not None and not isinstance(entry.node.value, words[key][0]):
            message = f"received {show(entry.node.plain())}; accepts {words[key][1]}"
            problems.append(Problem(entry.node.place, join(path, key), message))
    return problems

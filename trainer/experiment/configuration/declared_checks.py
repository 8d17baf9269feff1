"""Checks of the streams and features that a configuration declares, without calling user code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, did_you_mean
from ...storage.location import is_url
from .class_paths import UnresolvedError, has_reference, resolve
from .dotted_paths import join
from .experiment_config import INIT_KEYS, ExperimentConfig, ObjectSpec
from .instantiate import instantiate, make_features
from .problems import ConfigErrors, Problem, format_value
from .signature import real_signature
from .yaml_tree import Node


def stream_problems(config: ExperimentConfig) -> list[Problem]:
    """Return problems with paths, schemas and labels of declared streams, and with missing network inputs."""
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
    """Yield this package's streams in a value, nested ones included, with their arguments."""
    if not isinstance(value, ObjectSpec):
        return
    from ...streams.base import Stream

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
    except UnresolvedError:  # already reported by the loader
        return None


def _of_path(spec: ObjectSpec, arguments: Mapping[str, Any]) -> list[Problem]:
    path = arguments.get("path")
    if not isinstance(path, str) or has_reference(path) or Path(path).exists():
        return []
    message = f"{spec.class_path} takes a folder or file that exists; received {path!r}"
    return [Problem(spec.location, f"{spec.path}.init_args.path", message)]


def _schema(spec: ObjectSpec, declared: Any) -> tuple[Any, list[Problem]]:
    """Return the schema (None if a user function creates it) and its problems."""
    from ...streams import Schema
    from ...streams.formats.column import Column

    path = f"{spec.path}.init_args.schema"
    ours = (Schema, Column)
    try:
        if isinstance(declared, ObjectSpec):
            if not all(_target(part) in ours for part in _objects(declared)):
                return None, []
            schema = instantiate(declared)
            return (schema if isinstance(schema, Schema) else None), []
        if not isinstance(declared, Mapping) or any(_objects(declared)):
            return None, []
        accepted = set(inspect.signature(Schema).parameters)
        for name in declared:
            if name not in accepted:
                return None, [Problem(spec.location, path, f"Schema takes no {name!r}{did_you_mean(name, accepted)}")]
        return Schema(**declared), []
    except ConfigErrors as errors:
        return None, errors.problems
    except (ConfigurationError, TypeError) as error:
        return None, [Problem(spec.location, path, str(error))]


def _objects(value: Any) -> Iterator[ObjectSpec]:
    if isinstance(value, ObjectSpec):
        yield value
        value = (*value.args, *value.init_args.values())
    elif isinstance(value, Mapping):
        value = tuple(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from _objects(part)


def _of_network(config: ExperimentConfig, stream: ObjectSpec, schema: Any) -> list[Problem]:
    """Return the network arguments missing from a schema that names some of them.

    A schema that names none passes its columns by position.
    """
    from mindspore import nn

    from ...data.column_checks import arguments_of
    from ...data.ragged import given_names

    network = _target(config.network)
    if not (isinstance(network, type) and issubclass(network, nn.Cell)):
        return []
    required, _, arguments = arguments_of(network)
    columns = list(schema.columns)
    wanted = given_names(arguments[:required], columns)
    missing = [name for name in wanted if name not in columns]
    free = [name for name in columns if name not in (schema.label, schema.event_time)]
    if not missing or (len(missing) == len(wanted) and len(free) >= len(wanted)):
        return []
    hints = "".join(did_you_mean(name, free) for name in missing)
    message = (
        f"{network.__name__}.construct takes {', '.join(wanted)}; the schema has no {', '.join(missing)}, its columns "
        f"are {', '.join(columns)}{hints}"
    )
    return [Problem(stream.location, f"{stream.path}.init_args.schema", message)]


FEATURES_KEYS = (
    "columns",
    "label",
    "weight",
    "group",
    "event_time",
    "label_dtype",
    "keep",
    "update_every",
    "max_bad_share",
)
_ROWS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".arrows", ".feather")
_ARGUMENT = re.compile(r"\w+\((\w+)=")


def is_path_of_rows(text: str) -> bool:
    """Return whether a text names a file or folder of rows rather than a class."""
    return text.lower().endswith(_ROWS) or "/" in text or Path(text).is_dir()


def feature_problems(node: Node, path: str, *, together: bool) -> list[Problem]:
    """Return the problems of each feature, by key; without any, and if `together`, those of the whole set."""
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
            problems.append(Problem(node.location, path, str(error)))
    return problems


def _of_feature(node: Node, path: str) -> Iterator[Problem]:
    from ...features import KINDS
    from ...features.feature_arguments import as_feature

    if not isinstance(node.value, dict):
        yield Problem(
            node.location, path, f"received {format_value(node.plain(), path)}; accepts a mapping with kind and name"
        )
        return
    entries = node.value
    kind = None if "kind" not in entries else entries["kind"].node.value
    if kind not in KINDS:
        location = entries["kind"].location if "kind" in entries else node.location
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
        yield Problem(location, join(path, "kind"), f"received {format_value(kind)}; accepts {', '.join(KINDS)}{hint}")
        return
    accepted = ["kind", *KINDS[kind].__dataclass_fields__]
    unknown = [name for name in entries if name not in accepted]
    for name in unknown:
        message = (
            f"unknown key; a feature of kind {kind} accepts {', '.join(accepted)}{did_you_mean(str(name), accepted)}"
        )
        yield Problem(entries[name].location, join(path, name), message)
    if unknown:
        return
    try:
        as_feature(node.plain())
    except (ConfigurationError, TypeError) as error:
        argument = _ARGUMENT.match(str(error))
        entry = entries.get(argument.group(1)) if argument else None
        location = node.location if entry is None else entry.location
        yield Problem(location, path if entry is None else join(path, argument.group(1)), str(error))


def missing_beginning(config: ExperimentConfig) -> list[Problem]:
    """Return the problem of a section `init_from` whose path does not exist; a run that is resumed does not need it."""
    path = None if config.init_from is None else config.init_from.get("path")
    if not isinstance(path, str) or has_reference(path) or is_url(path) or Path(path).exists():
        return []
    message = f"takes a snapshot, a run folder, a .ckpt file or a published model that exists; received {path!r}"
    return [Problem(config.places["init_from"], "init_from.path", message)]


def initial_problems(node: Node, path: str) -> list[Problem]:
    """Return the problems of the section `init_from`, which is a path or a mapping of `INIT_KEYS`."""
    if node.value is None or isinstance(node.value, str):
        return []
    if not isinstance(node.value, dict):
        accepted = f"a path, or a mapping with the keys {', '.join(INIT_KEYS)}"
        return [Problem(node.location, path, f"received {format_value(node.plain())}; accepts {accepted}")]
    words = {"path": (str, "a path"), "parameter_map": (dict, "a mapping of names"), "strict": (bool, "true or false")}
    problems = [] if node.get("path") is not None else [Problem(node.location, join(path, "path"), "is missing")]
    for key, entry in node.value.items():
        if key not in words:
            message = f"unknown key; accepts {', '.join(INIT_KEYS)}{did_you_mean(str(key), INIT_KEYS)}"
            problems.append(Problem(entry.location, join(path, key), message))
        elif entry.node.value is not None and not isinstance(entry.node.value, words[key][0]):
            message = f"received {format_value(entry.node.plain())}; accepts {words[key][1]}"
            problems.append(Problem(entry.node.location, join(path, key), message))
    return problems

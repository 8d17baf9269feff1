"""Implement `trainer check`: find mistakes in an experiment without training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, did_you_mean
from ...storage.location import is_url, url_problem
from ..configuration.arguments import real_signature
from ..configuration.class_paths import UnresolvedError, has_reference, resolve
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.instantiate import instantiate, keyword_values
from ..configuration.object_spec import ObjectSpec
from ..configuration.problems import ConfigErrors, Problem, join
from ..configuration.sections import make_features

_HORIZONS = ("window_", "decayed_", "lifetime_")  # prefixes of metrics that only `online` produces


def run(config: ExperimentConfig) -> str:
    """Check an experiment; return a message to print if it has no problems.

    Raises:
        ConfigErrors: the experiment has problems; all of them are reported at once.
    """
    roles, role_problems = declared_roles(config)
    problems = [*stream_problems(config), *init_from_problems(config), *role_problems, *tower_problems(config)]
    if problems := [*problems, *argument_problems(config), *monitor_problems(config), *column_problems(config)]:
        raise ConfigErrors(problems)
    return f"nothing wrong with experiment {config.experiment!r}" + (f"\nroles: {roles}" if roles else "")


def stream_problems(config: ExperimentConfig) -> list[Problem]:
    """Return problems with the paths, schemas and network inputs of streams."""
    problems: list[Problem] = []
    data = config.data
    for spec in (data.train, data.valid, data.test, data.stream):
        for stream, arguments in _streams(spec):
            path, message = arguments.get("path"), None
            if _is_missing(path):
                message = f"{stream.class_path} takes a folder or file that exists; received {path!r}"
            elif isinstance(path, str) and is_url(path) and not has_reference(path):
                message = url_problem(path)
            if message is not None:
                problems.append(Problem(stream.location, f"{stream.path}.init_args.path", message))
            schema, schema_problems = _schema(stream, arguments.get("schema"))
            problems += schema_problems
            if schema is not None and stream is data.stream:
                problems += _network_problems(config, stream, schema)
    return problems


def _streams(value: Any) -> Iterator[tuple[ObjectSpec, dict[str, Any]]]:
    """Yield (stream, arguments) for each stream of this package, nested ones too."""
    from ...streams.base import Stream

    for spec in _objects(value):
        target = _target(spec)
        if isinstance(target, type) and issubclass(target, Stream) and target.__module__.startswith("trainer."):
            yield spec, {**dict(zip(real_signature(target).names(), spec.args, strict=False)), **spec.init_args}


def _target(spec: ObjectSpec) -> Any:
    try:
        return resolve(spec.class_path)
    except UnresolvedError:  # already reported by the loader
        return None


def _is_missing(path: Any) -> bool:
    return isinstance(path, str) and not (has_reference(path) or is_url(path) or Path(path).exists())


def _schema(spec: ObjectSpec, declared: Any) -> tuple[Any, list[Problem]]:
    """Return the schema (None if a user function creates it) and its problems."""
    from ...streams.formats.column import Column
    from ...streams.formats.schema import Schema, as_schema

    known = all(_target(part) in (Schema, Column) for part in _objects(declared))
    if not known or not isinstance(declared, ObjectSpec | Mapping):
        return None, []
    try:
        schema = instantiate(declared) if isinstance(declared, ObjectSpec) else keyword_values(declared, Schema)
        return as_schema(schema), []
    except ConfigErrors as errors:
        return None, errors.problems
    except (ConfigurationError, TypeError) as error:
        return None, [Problem(spec.location, f"{spec.path}.init_args.schema", str(error))]


def _objects(value: Any) -> Iterator[ObjectSpec]:
    if isinstance(value, ObjectSpec):
        yield value
        value = (*value.args, *value.init_args.values())
    elif isinstance(value, Mapping):
        value = tuple(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from _objects(part)


def argument_problems(config: ExperimentConfig) -> list[Problem]:
    """Return the errors raised by constructing the callbacks and raw files."""
    problems: list[Problem] = []
    for spec in [*_objects(config.callbacks), *_raw_files(config)]:
        if getattr(_target(spec), "__module__", "").startswith(("callbacks.", "trainer.")):
            try:
                instantiate(spec)
            except ConfigErrors as errors:
                problems += errors.problems
    return problems


def monitor_problems(config: ExperimentConfig) -> list[Problem]:
    """Return a problem for each callback whose monitor `fit` does not produce.

    The check is skipped if the loss, a metric or the validation data is user code, because only a run shows which
    metrics user code produces.
    """
    from ...metrics.registry import task_metrics
    from ...run.monitors import check_monitors, produced_metrics

    data, problems = config.data, []
    objects = [*_objects(config.loss), *_objects(config.metrics), *_objects(data.valid)]
    if not all(getattr(_target(spec), "__module__", "").startswith(("mindspore.", "trainer.")) for spec in objects):
        return []
    try:
        loss = None if config.loss is None else instantiate(config.loss)
        tasks = loss if hasattr(loss, "tasks") else None
        named = [instantiate(metric) if isinstance(metric, ObjectSpec) else metric for metric in config.metrics]
        metrics = task_metrics(named, () if tasks is None else tasks.tasks)
    except (ConfigErrors, ConfigurationError):  # reported elsewhere, or by the Trainer
        return []
    validated = produced_metrics(metrics, tasks, ("",), None)
    produced = produced_metrics(metrics, tasks, (), None) if data.train and not data.valid else validated
    for spec in _objects(config.callbacks):
        if not getattr(_target(spec), "__module__", "").startswith("callbacks."):
            continue
        try:
            callback = instantiate(spec)
            monitor = str(callback.monitor)
            may_be_online = data.stream is not None and not monitor.startswith("val_")  # a metric of `online`
            if not may_be_online or (did_you_mean(monitor, validated, 0.7) and not monitor.startswith(_HORIZONS)):
                check_monitors([callback], produced, validated)
        except ConfigErrors:  # reported by `argument_problems`
            continue
        except ConfigurationError as error:
            problems.append(Problem(spec.location, f"{spec.path}.init_args.monitor", str(error)))
    return problems


def _raw_files(config: ExperimentConfig) -> Iterator[ObjectSpec]:
    from ...features.raw_files import RawFiles

    data = config.data
    for spec in (data.train, data.valid, data.test):
        if isinstance(spec, ObjectSpec) and _target(spec) is RawFiles:
            yield spec


def column_problems(config: ExperimentConfig) -> list[Problem]:
    """Return a problem for each declared column that the training file lacks."""
    if config.features is None:
        return []
    try:
        features = make_features(config.features)
    except ConfigErrors:  # already reported
        return []
    except ConfigurationError as error:  # an environment variable is not set
        return [config.problem("features", str(error))]
    for spec in _raw_files(config):
        path = spec.init_args.get("path")
        if spec is config.data.train and isinstance(path, str) and not has_reference(path) and Path(path).exists():
            names = instantiate(spec).names(features.csv)
            return [
                config.problem("features", f"{path} has no column {name!r}, it has {', '.join(names)}{hint}")
                for name in features.schema_of(labelled=True).fields
                if names and name not in names
                for hint in [did_you_mean(name, names)]
            ]
    return []


def tower_problems(config: ExperimentConfig) -> list[Problem]:
    """Return a problem if the user tower reads a label or the row weight.

    Both are known only after the user has chosen an item.
    """
    from ...models.two_tower import TwoTower, label_leak

    item = None if config.network is None else config.network.init_args.get("item")
    if config.features is None or item is None or _target(config.network) is not TwoTower:
        return []
    message = label_leak(make_features(config.features), [item] if isinstance(item, str) else item)
    return [] if message is None else [Problem(config.network.location, join(config.network.path, "item"), message)]


def _network_problems(config: ExperimentConfig, stream: ObjectSpec, schema: Any) -> list[Problem]:
    """Return a problem if the schema lacks columns that the network needs.

    If no column has the name of an argument, columns are passed by position, and only their number is checked.
    """
    from mindspore import nn

    from ...data.column_checks import arguments_of
    from ...data.ragged import data_arguments

    network = _target(config.network)
    if not (isinstance(network, type) and issubclass(network, nn.Cell)):
        return []
    required, _, arguments = arguments_of(network)
    columns = list(schema.columns)
    required_names = data_arguments(arguments[:required], columns)
    missing = [name for name in required_names if name not in columns]
    input_columns = [name for name in columns if name not in (schema.label, schema.event_time)]
    if not missing or (len(missing) == len(required_names) and len(input_columns) >= len(required_names)):
        return []
    hints = "".join(did_you_mean(name, input_columns) for name in missing)
    message = (
        f"{network.__name__}.construct takes {', '.join(required_names)}; the schema has no {', '.join(missing)}, its "
        f"columns are {', '.join(columns)}{hints}"
    )
    return [Problem(stream.location, f"{stream.path}.init_args.schema", message)]


def init_from_problems(config: ExperimentConfig) -> list[Problem]:
    """Return a problem if the `init_from` path does not exist.

    The loader cannot require the path, because a resumed run does not read it.
    """
    path = None if config.init_from is None else config.init_from.get("path")
    if not _is_missing(path):
        return []
    message = f"takes a snapshot, a run folder, a .ckpt file or a published model that exists; received {path!r}"
    return [Problem(config.location("init_from"), "init_from.path", message)]


def declared_roles(config: ExperimentConfig) -> tuple[str, list[Problem]]:
    """Return a description of the declared label and weight, and their problems.

    Returns ("", []) if the network or the loss is user code: only a run can check that.
    """
    from ...graph.roles import loss_columns
    from ...metrics.registry import check_weighted, task_metrics
    from ...run.declared_features import check_labels

    ours = ("mindspore.", "trainer.")
    parts = [config.network, *_objects(config.loss)]
    if config.features is None or not all(getattr(_target(p), "__module__", "").startswith(ours) for p in parts):
        return "", []
    try:
        loss = None if config.loss is None else instantiate(config.loss)
        features = make_features(config.features)
        columns = loss_columns(_target(config.network), loss, features)
        check_labels(features, loss)
        if columns.weight is not None and config.trainer.get("weighted_metrics", True):
            named = [metric for metric in config.metrics if isinstance(metric, str)]
            check_weighted(task_metrics(named, getattr(loss, "tasks", ())), columns.weight)
    except ConfigErrors as errors:
        return "", errors.problems
    except ConfigurationError as error:
        return "", [config.problem("features", str(error))]
    return columns.describe(loss) if columns.count else "", []

"""Create the objects of a configuration: one (`instantiate`) or all (`build`)."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, TrainerError
from .arguments import UNKNOWN, Signature, real_signature
from .class_paths import UnresolvedError, expand, has_reference, resolve
from .experiment_config import DATA_KEYS, ExperimentConfig
from .kinds import wrong_result
from .object_spec import ObjectSpec
from .problems import ConfigErrors, Problem
from .sections import ObjectSection, make_features
from .yaml_tree import parse_tree

if TYPE_CHECKING:
    from ...trainer import Trainer


@dataclass
class Experiment:
    """An experiment built from a configuration.

    Attributes:
        config: the configuration it was built from.
        trainer: the trainer, with network, loss, optimizer and metrics.
        callbacks: the callbacks, in configuration order.
        datasets: the requested datasets, by their key in section `data`.
        parts: the objects of the other sections by name, such as "report"; None for a missing section.
    """

    config: ExperimentConfig
    trainer: Trainer
    callbacks: list[Any] = field(default_factory=list)
    datasets: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def report(self) -> Callable[[Trainer, Path], Any] | None:
        """Object to call at the end of a run, or None."""
        return self.parts.get("report")


def build(config: ExperimentConfig, datasets: Iterable[str] | None = None) -> Experiment:
    """Build the experiment that `config` describes.

    Seeds Python, NumPy and MindSpore with ``config.seed`` first, because networks initialize weights on construction.

    Args:
        config: a checked configuration.
        datasets: keys of section `data` to build ("train", "valid", "test", "stream"); None: all that are configured.

    Raises:
        ConfigErrors: objects cannot be created from their arguments; all problems are reported at once.
        TrainerError: raised by a data source itself.
    """
    from ...checkpoint.capture import seed_everything

    seed_everything(config.seed)
    builder = _Builder(config)
    trainer = builder.trainer()
    parts = {name: builder.create(getattr(config, name), kind) for name, kind in _PART_SECTIONS.items()}
    objects = {}
    if not builder.problems:  # opening the data may be slow, so report other problems first
        specs = {key: getattr(config.data, key) for key in (DATA_KEYS if datasets is None else datasets)}
        objects = {key: builder.create(spec, "data") for key, spec in specs.items() if spec is not None}
    if builder.problems or trainer is None:
        raise ConfigErrors(builder.problems)
    return Experiment(config, trainer, parts.pop("callbacks"), objects, parts)


_PART_SECTIONS = {
    name: kind.section
    for name, section in ExperimentConfig.model_fields.items()
    for kind in section.metadata
    if isinstance(kind, ObjectSection) and name not in ("network", "loss", "optimizer", "metrics")  # Trainer arguments
}


class _Builder:
    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self.problems: list[Problem] = []

    def create(self, spec: Any, section: str, supplied: Mapping[str, Any] | None = None) -> Any:
        """Create the object or objects of `spec`; return None after recording a problem."""
        if isinstance(spec, tuple):
            return [self.create(item, section) for item in spec]
        if not isinstance(spec, ObjectSpec):  # None or the name of a metric
            return spec
        try:
            instance = instantiate(spec, supplied)
        except ConfigErrors as errors:
            self.problems.extend(errors.problems)
            return None
        if problem := wrong_result(instance, section):
            message = f"{spec.class_path} returned {type(instance).__name__}, {problem}"
            self.problems.append(Problem(spec.location, spec.path, message))
        return instance

    def trainer(self) -> Trainer | None:
        from ...graph.optimizers import dense_parameters
        from ...trainer import Trainer

        config = self.config
        features = None
        if config.features is not None:
            try:
                features = make_features(config.features)
            except ConfigurationError as error:
                self.problems.append(config.problem("features", str(error)))
                return None
        network = self.create(config.network, "network", {} if features is None else {"features": features})
        loss = self.create(config.loss, "loss")
        optimizer = None
        if config.optimizer is not None and network is not None:
            supplied = {"params": dense_parameters(network), "network": network}
            optimizer = self.create(config.optimizer, "optimizer", supplied)
        metrics = self.create(config.metrics, "metrics")
        options = dict(config.trainer)
        eval_network = options.pop("eval_network", None)
        try:
            options = keyword_values(options, Trainer)
            if isinstance(eval_network, ObjectSpec) and network is not None:
                supplied_values = {"network": network, "loss_fn": loss}
                options["eval_network"] = self.create(eval_network, "eval_network", supplied_values)
        except ConfigErrors as errors:
            self.problems.extend(errors.problems)
        if self.problems:
            return None
        try:
            return Trainer(network, loss, optimizer, metrics or None, seed=config.seed, features=features, **options)
        except (ConfigurationError, TypeError, ValueError) as error:
            self.problems.append(config.problem("trainer", str(error)))
            return None


def keyword_values(section: Mapping[str, Any], target: Callable[..., Any]) -> dict[str, Any]:
    """Create the keyword arguments of a section for a call of `target`."""
    return _keywords(section, real_signature(target))


def instantiate(spec: ObjectSpec, supplied: Mapping[str, Any] | None = None) -> Any:
    """Create the object that `spec` describes; nested objects are created first.

    Args:
        spec: class path and arguments.
        supplied: arguments from other sections, passed on if the signature has them and `spec` does not.

    Raises:
        ConfigErrors: the class path cannot be resolved, or the call raises; the cause is chained.
        TrainerError: other documented exceptions of this package, unchanged.
        OSError: data cannot be read or fetched; a missing file raises ConfigErrors instead.
    """
    try:
        target = resolve(spec.class_path)
        signature = real_signature(target)
        positional = _positional(spec, signature, supplied or ())
        keywords = _keywords(spec.init_args, signature)
    except ConfigErrors:
        raise
    except (UnresolvedError, ConfigurationError) as error:
        raise ConfigErrors([Problem(spec.location, spec.path, str(error))]) from error
    supplied_values = {name: value for name, value in (supplied or {}).items() if name not in keywords}
    if signature is UNKNOWN:
        positional = (*list(supplied_values.values())[:1], *positional)
    else:
        if any(name in supplied_values for name in list(signature.parameters)[: len(positional)]):
            # positional arguments skip the parameters that are filled in
            names = [name for name in signature.parameters if name not in supplied_values]
            keywords, positional = dict(zip(names, positional, strict=False)), ()
        keywords |= {name: value for name, value in supplied_values.items() if name in signature.parameters}
    try:
        return target(*positional, **keywords)
    except ConfigErrors:
        raise
    except (ConfigurationError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ConfigErrors([Problem(spec.location, spec.path, f"{spec.class_path}: {error}")]) from error
    except (TrainerError, OSError):
        raise
    except Exception as error:
        raise ConfigErrors([Problem(spec.location, spec.path, _failure(spec, error))]) from error


def _positional(spec: ObjectSpec, signature: Signature, supplied: Iterable[str]) -> tuple[Any, ...]:
    names = itertools.chain((name for name in signature.parameters if name not in supplied), itertools.repeat(""))
    return tuple(_argument(name, value, signature) for name, value in zip(names, spec.args, strict=False))


def _keywords(arguments: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    return {name: _argument(name, value, signature) for name, value in arguments.items()}


def _argument(name: str, value: Any, signature: Signature) -> Any:
    """Create an argument, and convert it to the type of its parameter."""
    instance = _instantiated(value, name)
    parameter = signature.parameters.get(name)
    if parameter is None:
        return instance
    fits, converted = parameter.convert(instance)
    if has_reference(value) and not fits:
        fits, converted = parameter.convert(_instantiated(value, name, parsed=True))  # "6379" becomes a number
        if not fits:
            raise ConfigurationError(f"{name}: the value of {value} does not fit; accepts {parameter.text}")
    return converted


def _instantiated(value: Any, name: object, *, parsed: bool = False) -> Any:
    """Create the objects in a plain value, and replace its references.

    With `parsed`, the values of variables are read as YAML.
    """
    if isinstance(value, ObjectSpec):
        return instantiate(value)
    if isinstance(value, dict):
        return {key: _instantiated(item, key, parsed=parsed) for key, item in value.items()}
    if isinstance(value, list):
        return [_instantiated(item, name, parsed=parsed) for item in value]
    if not isinstance(value, str):
        return value
    text = expand(value, name)
    return parse_tree(text, str(name)).value if parsed and has_reference(value) else text


def _failure(spec: ObjectSpec, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if len(frames) > 1 else ""
    text = str(error).split("\n---")[0].strip()
    return f"{spec.class_path} cannot be created: {type(error).__name__}: {text}{where}"

"""A checked configuration as frozen dataclasses, and its plain form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...masking import mask_value
from .problems import SourceLocation, join


@dataclass(frozen=True)
class ObjectSpec:
    """An object to be instantiated: ``class_path`` called with ``init_args``.

    Attributes:
        class_path: dotted path of a class, or of any callable that returns the object.
        init_args: keyword arguments; values are plain or `ObjectSpec`, also inside lists and mappings.
        args: positional arguments, if ``init_args`` is a list.
        location: where the object is in the configuration file.
        path: its dotted path in the configuration.
        defaults: plain default values of arguments that are not given, recorded with the run.
        model: name in `trainer.models`, if the configuration gives it instead of ``class_path``; or "".
    """

    class_path: str
    init_args: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    location: SourceLocation = field(default=SourceLocation(""), compare=False)
    path: str = field(default="", compare=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)
    model: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form with defaults filled in."""
        if self.model:
            return {"model": self.model, **to_plain({**self.init_args, **self.defaults})}
        plain: dict[str, Any] = {"class_path": self.class_path}
        if self.args:
            plain["init_args"] = to_plain(self.args)
        elif self.init_args or self.defaults:
            plain["init_args"] = to_plain({**self.init_args, **self.defaults})
        return plain


@dataclass(frozen=True)
class DataConfig:
    """The datasets of an experiment.

    Attributes:
        train: what `fit` trains on.
        valid: what `fit` validates on.
        test: what `evaluate` and `predict` read, and what a finished `fit` is evaluated on.
        stream: what `online` trains on.
    """

    train: ObjectSpec | None = None
    valid: ObjectSpec | None = None
    test: ObjectSpec | None = None
    stream: ObjectSpec | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """A checked experiment.

    Attributes:
        experiment: name of the experiment: letters, digits, ``_``, ``-`` and ``.``.
        network: the network.
        features: arguments of `Features`, its features under "columns"; None: data are the network's inputs.
        init_from: arguments of `Trainer.init_from`, applied before `fit` and `online`; None: a training from the start.
        seed: seed of every random number generator; 0 to 2**32 - 1. Default: 0.
        run_dir: folder of the run. Default: ``runs/<experiment>``.
        mirror: URL of the run's mirror, as in ``s3://bucket/run``; None: it has none.
        loss: the loss, or None when the network returns it.
        optimizer: the optimizer, or None when the network is a whole training step. Its `params` are filled in.
        metrics: names and objects.
        trainer: further keyword arguments of `Trainer`.
        data: the datasets.
        fit: further keyword arguments of `Trainer.fit`.
        online: further keyword arguments of `Trainer.online_train`.
        callbacks: the callbacks, in order.
        report: an object called as ``report(trainer, run_dir)`` after `fit`.
        source: the file the configuration was read from.
        overrides: the ``--set`` arguments that were applied.
        locations: location of each section, for messages.
        section_defaults: dotted paths of keywords of `trainer`, `fit` and `online` that are filled in.
    """

    experiment: str
    seed: int = 0
    run_dir: Path = Path("runs")
    mirror: str | None = None
    init_from: Mapping[str, Any] | None = None
    features: Mapping[str, Any] | None = None
    network: ObjectSpec
    loss: ObjectSpec | None = None
    optimizer: ObjectSpec | None = None
    metrics: tuple[str | ObjectSpec, ...] = ()
    trainer: Mapping[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    fit: Mapping[str, Any] = field(default_factory=dict)
    online: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[ObjectSpec, ...] = ()
    report: ObjectSpec | None = None
    source: Path | None = field(default=None, compare=False)
    overrides: tuple[str, ...] = field(default=(), compare=False)
    locations: Mapping[str, SourceLocation] = field(default_factory=dict, compare=False)
    section_defaults: tuple[str, ...] = field(default=(), compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form for the run folder, without empty values.

        References to environment variables stay references; credentials are masked.
        """
        plain = mask_value({name: to_plain(getattr(self, name)) for name in SECTIONS})
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}

    def default_paths(self) -> list[str]:
        """Return the dotted paths of the arguments that have their default values."""
        return [*self.section_defaults, *(path for name in SECTIONS for path in _defaults(getattr(self, name), name))]


def _defaults(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, ObjectSpec):
        below = path if value.model else f"{path}.init_args"
        yield from (f"{below}.{name}" for name in value.defaults)
        yield from _defaults(dict(value.init_args), below)
    elif isinstance(value, DataConfig):
        for name in DATA_KEYS:
            yield from _defaults(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _defaults(item, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _defaults(item, f"{path}.{index}")


SECTIONS: tuple[str, ...] = tuple(entry.name for entry in fields(ExperimentConfig) if entry.compare)
REQUIRED: tuple[str, ...] = ("experiment", "network")
INIT_KEYS: tuple[str, ...] = ("path", "parameter_map", "strict")
DATA_KEYS: tuple[str, ...] = tuple(entry.name for entry in fields(DataConfig))


def to_plain(value: Any) -> Any:
    """Return the plain form: no `ObjectSpec`, dataclass section, path or tuple."""
    if isinstance(value, ObjectSpec):
        return value.to_dict()
    if isinstance(value, DataConfig):
        return {name: to_plain(getattr(value, name)) for name in DATA_KEYS if getattr(value, name) is not None}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings and lists, empty ones too, by dotted path."""
    if isinstance(value, Mapping) and value:
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        children = enumerate(value)
    else:
        return {path: value}
    flat: dict[str, Any] = {}
    for key, item in children:
        flat.update(flatten(item, join(path, str(key))))
    return flat

"""Sections of an experiment.

Each section is a field of `ExperimentConfig`. The annotation of the field defines how `load_config` reads the section.
The docstring of the field is its description in the JSON schema and the YAML reference. The run folder records all
sections, and `build` creates their objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StrictInt, StrictStr, ValidationInfo

from ...masking import mask_value
from ...storage.location import is_url, url_problem
from .class_paths import has_reference, wrong_reference
from .object_spec import ObjectSpec, default_paths, to_plain
from .problems import Problem, SourceLocation
from .reader import Section, noted
from .sections import Callbacks, DeclaredFeatures, Keywords, Made, Metrics, Network, Rows, StreamOfRows
from .yaml_tree import Tree

_RESUME = "trainer {} --resume RUN"
_TRAINER = Keywords(
    elsewhere={
        **{name: f"section {name}" for name in ("network", "features", "optimizer", "metrics")},
        "loss_fn": "section loss",
        "seed": "key seed",
        "run_dir": "key run_dir",
    }
)
_CALLBACKS = {"callbacks": "section callbacks"}
_FIT = Keywords(
    "fit",
    {"train_dataset": "data.train", "valid_dataset": "data.valid", **_CALLBACKS, "resume": _RESUME.format("fit")},
)
_ONLINE = Keywords("online_train", {"stream": "data.stream", **_CALLBACKS, "resume": _RESUME.format("online")})
_BASELINE = Keywords(
    "trainer.report.baseline.Baseline",
    {"train": "data.train", "test": "data.test, without it data.valid"},
)


def _folder(value: Any) -> Path:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or has_reference(value):
        raise ValueError("no folder")
    return Path(value)


def _store(value: str, info: ValidationInfo) -> str:
    if has_reference(value) or is_url(value):
        wrong = wrong_reference(value) if has_reference(value) else url_problem(value)
        if wrong:
            info.context.add((info.field_name,), wrong)
            raise noted()
        return value
    raise ValueError("no URL")


def _data(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, DataConfig):
        return value
    read = info.context.model(DataConfig, value, (info.field_name,))
    if read is None:
        raise noted()
    return read


class DataConfig(Section):
    """The datasets of an experiment."""

    train: Annotated[ObjectSpec | None, Rows("data")] = None
    """Training data of `fit`."""
    valid: Annotated[ObjectSpec | None, Rows("data")] = None
    """Validation data of `fit`."""
    test: Annotated[ObjectSpec | None, Rows("data")] = None
    """Data of `evaluate` and `predict`, and of the evaluation at the end of `fit` and `online`."""
    stream: Annotated[ObjectSpec | None, StreamOfRows("data")] = None
    """Stream that `online` trains on; a mapping with the key `served` has the arguments of `ServedOutcomes`."""


class ExperimentConfig(Section):
    """A checked experiment."""

    experiment: Annotated[
        StrictStr,
        Field(
            pattern=r"^[A-Za-z0-9_][\w.-]*$",
            title="a name of letters, digits, '_', '-' and '.', as in wide_deep_movielens",
        ),
    ]
    """Name of the experiment: letters, digits, ``_``, ``-`` and ``.``."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32, title="a whole number from 0 to 4294967295")] = 0
    """Seed of every random number generator; 0 to 2**32 - 1. Default: 0."""
    run_dir: Annotated[Path, BeforeValidator(_folder), Field(title="the path of a folder")] = Path("runs")
    """Folder of the run. Default: ``runs/<experiment>``."""
    mirror: Annotated[
        StrictStr, AfterValidator(_store), Field(title="the URL of a folder in a store, as in s3://bucket/run")
    ] = None
    """URL that the run folder is mirrored to, such as ``s3://bucket/run``; None: no mirror."""
    init_from: Annotated[Mapping[str, Any] | None, Keywords("init_from", filled=False, alone="path")] = None
    """Arguments of `Trainer.init_from`, applied before `fit` and `online`; None: training starts from new weights."""
    features: Annotated[Mapping[str, Any] | None, DeclaredFeatures()] = None
    """Arguments of `Features`, with its features under "columns"; None: datasets contain the network's inputs."""
    network: Annotated[ObjectSpec, Network("network")]
    """The network."""
    loss: Annotated[ObjectSpec | None, Made("loss")] = None
    """The loss, or None when the network returns it."""
    optimizer: Annotated[ObjectSpec | None, Made("optimizer")] = None
    """The optimizer, or None if the network is a complete training step. Its argument `params` is filled in."""
    metrics: Annotated[tuple[str | ObjectSpec, ...], Metrics("metrics")] = ()
    """Metrics, each a name or an object."""
    trainer: Annotated[Mapping[str, Any], _TRAINER] = {}
    """Further keyword arguments of `Trainer`."""
    data: Annotated[DataConfig, BeforeValidator(_data)] = DataConfig()
    """The datasets."""
    fit: Annotated[Mapping[str, Any], _FIT] = {}
    """Further keyword arguments of `Trainer.fit`."""
    online: Annotated[Mapping[str, Any], _ONLINE] = {}
    """Further keyword arguments of `Trainer.online_train`."""
    callbacks: Annotated[tuple[ObjectSpec, ...], Callbacks("callbacks")] = ()
    """The callbacks, in order."""
    baseline: Annotated[Mapping[str, Any] | None, _BASELINE] = None
    """Arguments of `trainer.report.baseline.Baseline`, which compares `fit` with plain models; None: no comparison."""
    report: Annotated[ObjectSpec | None, Made("report")] = None
    """An object that is called as ``report(trainer, run_dir)`` at the end of `fit` and `online`."""

    _source: Path | None = PrivateAttr(None)
    _overrides: tuple[str, ...] = PrivateAttr(())
    _tree: Tree | None = PrivateAttr(None)

    @property
    def source(self) -> Path | None:
        """File the configuration was read from, or None."""
        return self._source

    @property
    def overrides(self) -> tuple[str, ...]:
        """Arguments of ``--set`` that were applied."""
        return self._overrides

    def read_from(self, source: Path, overrides: tuple[str, ...], tree: Tree) -> ExperimentConfig:
        """Return a copy that knows its file, its overrides and the location of each value."""
        config = self.model_copy()
        config._source, config._overrides, config._tree = source, overrides, tree
        return config

    def location(self, *path: str) -> SourceLocation:
        """Return the location of the value at a path."""
        return SourceLocation("configuration") if self._tree is None else self._tree.location(path)

    def problem(self, section: str, message: str) -> Problem:
        """Return a problem at the key that `message` begins with, else at the section."""
        key = message.partition(":")[0].partition("=")[0].strip()
        written = None if self._tree is None else self._tree.get((section,))
        if isinstance(written, dict) and key in written:
            return Problem(self.location(section, key), f"{section}.{key}", message.partition(":")[2].strip())
        return Problem(self.location(section), section, message)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values to write to the run folder, without empty ones.

        References to environment variables are kept as references, and credentials are masked.
        """
        plain = mask_value(to_plain(self))
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}

    def default_paths(self) -> list[str]:
        """Return the dotted paths of arguments that were filled in with defaults."""
        return list(default_paths(self))


SECTIONS: tuple[str, ...] = tuple(ExperimentConfig.model_fields)
DATA_KEYS: tuple[str, ...] = tuple(DataConfig.model_fields)

"""Sections of an experiment.

Each section is a field of `ExperimentConfig`. The annotation of the field defines how `load_config` reads the section.
The docstring of the field is its description in the JSON schema and the YAML reference. The run folder records all
sections, and `build` creates their objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StrictInt, StrictStr, ValidationInfo

from ...masking import mask_value
from ...storage.location import is_url, url_problem
from . import sections
from .class_paths import has_reference, wrong_reference
from .object_spec import ObjectSpec, flatten, to_plain
from .problems import Problem, SourceLocation
from .reader import Section
from .yaml_tree import Tree

_RESUME = "trainer {} --resume RUN"
_TRAINER = sections.KeywordArguments(
    "trainer.Trainer",
    {
        **{name: f"section {name}" for name in ("network", "features", "optimizer", "metrics")},
        "loss_fn": "section loss",
        "seed": "key seed",
        "run_dir": "key run_dir",
    },
)
_CALLBACKS = {"callbacks": "section callbacks"}
_FIT = sections.KeywordArguments(
    "trainer.Trainer.fit",
    {"train_dataset": "data.train", "valid_dataset": "data.valid", **_CALLBACKS, "resume": _RESUME.format("fit")},
)
_ONLINE = sections.KeywordArguments(
    "trainer.Trainer.online_train",
    {"stream": "data.stream", **_CALLBACKS, "resume": _RESUME.format("online")},
)
_BASELINE = sections.KeywordArguments(
    "trainer.report.baseline.Baseline",
    {"train": "data.train", "test": "data.test, without it data.valid"},
)


def _run_folder(value: Any) -> Path:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or has_reference(value):
        raise ValueError("no folder")
    if Path(value).name in ("", ".."):  # "/" or ".", beside which no second run has a name
        raise ValueError("no name")
    return Path(value)


def _mirror_url(value: str, info: ValidationInfo) -> str:
    if not has_reference(value) and not is_url(value):
        raise ValueError("no URL")
    if problem := wrong_reference(value) if has_reference(value) else url_problem(value):
        cast(Any, info.context).add((info.field_name,), problem)
    return value


def _data_section(value: Any, info: ValidationInfo) -> Any:
    return cast(Any, info.context).model(DataConfig, value, (info.field_name,)) or DataConfig()


class DataConfig(Section):
    """The datasets of an experiment."""

    train: Annotated[ObjectSpec | None, sections.RowSource("data")] = None
    """Training data of `fit`."""
    valid: Annotated[ObjectSpec | None, sections.RowSource("data")] = None
    """Validation data of `fit`."""
    test: Annotated[ObjectSpec | None, sections.RowSource("data")] = None
    """Data of `evaluate` and `predict`, and of the evaluation at the end of `fit` and `online`."""
    stream: Annotated[ObjectSpec | None, sections.StreamSource("data")] = None
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
    run_dir: Annotated[
        Path,
        BeforeValidator(_run_folder),
        Field(title="the path of a folder that ends with its name, as in runs/visits"),
    ] = Path("runs")
    """Folder of the run. Default: ``runs/<experiment>``."""
    mirror: Annotated[
        StrictStr, AfterValidator(_mirror_url), Field(title="the URL of a folder in a store, as in s3://bucket/run")
    ] = cast(Any, None)
    """URL that the run folder is mirrored to, such as ``s3://bucket/run``; None: no mirror."""
    init_from: Annotated[
        Mapping[str, Any] | None,
        sections.KeywordArguments("trainer.Trainer.init_from", fill_defaults=False, shorthand="path"),
    ] = None
    """Arguments of `Trainer.init_from`, applied before `fit` and `online`; None: training starts from new weights."""
    features: Annotated[Mapping[str, Any] | None, sections.FeaturesSection()] = None
    """Arguments of `Features`, with its features under "columns"; None: datasets contain the network's inputs."""
    network: Annotated[ObjectSpec, sections.NetworkSection("network")]
    """The network."""
    loss: Annotated[ObjectSpec | None, sections.ObjectSection("loss")] = None
    """The loss, or None when the network returns it."""
    optimizer: Annotated[ObjectSpec | None, sections.ObjectSection("optimizer")] = None
    """The optimizer, or None if the network is a complete training step. Its argument `params` is filled in."""
    metrics: Annotated[tuple[str | ObjectSpec, ...], sections.MetricsSection("metrics")] = ()
    """Metrics, each a name or an object."""
    trainer: Annotated[Mapping[str, Any], _TRAINER] = {}
    """Further keyword arguments of `Trainer`."""
    data: Annotated[DataConfig, BeforeValidator(_data_section)] = DataConfig()
    """The datasets."""
    fit: Annotated[Mapping[str, Any], _FIT] = {}
    """Further keyword arguments of `Trainer.fit`."""
    online: Annotated[Mapping[str, Any], _ONLINE] = {}
    """Further keyword arguments of `Trainer.online_train`."""
    callbacks: Annotated[tuple[ObjectSpec, ...], sections.CallbacksSection("callbacks")] = ()
    """The callbacks, in order."""
    baseline: Annotated[Mapping[str, Any] | None, _BASELINE] = None
    """Arguments of `trainer.report.baseline.Baseline`, which compares `fit` with plain models; None: no comparison."""
    report: Annotated[ObjectSpec | None, sections.ObjectSection("report")] = None
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
        """Return a copy with its file, its overrides and the locations of its values."""
        config = self.model_copy()
        config._source, config._overrides, config._tree = source, overrides, tree
        return config

    def location(self, *path: str) -> SourceLocation:
        """Return the location of the value at a path."""
        return SourceLocation("configuration") if self._tree is None else self._tree.location(path)

    def problem(self, section: str, message: str) -> Problem:
        """Return a problem of the key that `message` begins with, else of the section."""
        key = message.partition(":")[0].partition("=")[0].strip()
        written = None if self._tree is None else self._tree.get((section,))
        if isinstance(written, dict) and key in written:
            return Problem(self.location(section, key), f"{section}.{key}", message.partition(":")[2].strip())
        return Problem(self.location(section), section, message)

    def to_dict(self) -> dict[str, Any]:
        """Return the nonempty plain values, as written to the run folder.

        References to environment variables stay references, and credentials are masked.
        """
        plain = mask_value(to_plain(self))
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}

    def default_paths(self) -> list[str]:
        """Return the dotted paths of arguments that were filled in with defaults."""
        given = flatten(to_plain(self, defaults=False))
        return [path for path in flatten(to_plain(self)) if path not in given]


SECTIONS: tuple[str, ...] = tuple(ExperimentConfig.model_fields)
DATA_KEYS: tuple[str, ...] = tuple(DataConfig.model_fields)

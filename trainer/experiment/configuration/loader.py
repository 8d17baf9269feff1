"""Loads a checked `ExperimentConfig`, or reports all problems at once.

No object is created, no data is read and nothing is compiled. Modules named by class paths are imported, because
arguments are checked against the real signatures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...checks import is_whole
from ...errors import ConfigurationError, did_you_mean
from ...masking import remember_credentials
from ...storage.location import is_url, url_problem
from ..runs import run_folder
from .class_paths import has_reference, is_dotted, wrong_reference
from .experiment_config import (
    DATA_KEYS,
    INIT_KEYS,
    REQUIRED,
    SECTIONS,
    DataConfig,
    ExperimentConfig,
    ObjectSpec,
    to_plain,
)
from .extends import read_extended
from .instantiate import make_features
from .object_reader import ObjectReader, missing_keys, recordable
from .problems import ConfigErrors, Problem, join
from .sections import features_keys, known_metrics, metric_known, section_signature, trainer_problems, value_problems
from .yaml_tree import Node, apply_overrides

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*\Z")
_ROWS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".arrows", ".feather")
_FEATURE_ARGUMENT = re.compile(r"\w+\((\w+)=")  # begins the errors of features


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Return the checked configuration of the YAML file `path`.

    Args:
        path: the file, or a run folder, whose ``config.yaml`` is read.
        overrides: ``"a.b=c"`` strings as given to ``--set``.

    Raises:
        ConfigErrors: the configuration has problems; all of them at once.
    """
    path, overrides = Path(path), tuple(overrides)
    if path.is_dir() and (path / "config.yaml").is_file():
        path = path / "config.yaml"
    root, problems = apply_overrides(read_extended(path), overrides)
    features = root.get("features")
    reader = _Reader(problems, features is not None and features.value is not None)
    with run_folder.project_paths(path):
        config = reader.read(root, path, overrides)
    if reader.objects.problems or config is None:
        raise ConfigErrors(reader.objects.problems)
    remember_credentials({name: to_plain(getattr(config, name)) for name in SECTIONS})
    return config


class _Reader:
    """Walks the tree once, building the configuration and collecting problems."""

    def __init__(self, problems: Iterable[Problem], has_features: bool) -> None:
        self.objects = ObjectReader(problems, has_features)
        self.has_features = has_features
        self.section_defaults: list[str] = []
        self.add, self.refuse = self.objects.add, self.objects.refuse

    def read(self, root: Node, source: Path, overrides: tuple[str, ...]) -> ExperimentConfig | None:
        if not isinstance(root.value, dict):
            self.refuse(root, "", f"a mapping with the keys {', '.join(SECTIONS)}")
            return None
        self.objects.check_keys(root, "", SECTIONS)
        for name in missing_keys(REQUIRED, root.value, SECTIONS):
            self.add(root.location, name, "is missing")
        sections = {name: root.get(name) for name in SECTIONS}
        readers: dict[str, Callable[[Node, str], Any]] = {
            "experiment": self._experiment,
            "seed": self._seed,
            "run_dir": self._run_dir,
            "mirror": self._mirror,
            "metrics": self._metrics,
            "data": self._data,
            "features": self._features,
            "init_from": self._init_from,
            "callbacks": self._callbacks,
            **dict.fromkeys(("trainer", "fit", "online"), self._keywords),
        }
        # a null or rejected section keeps its default
        sections = {name: n for name, n in sections.items() if n and (n.value is not None or name in REQUIRED)}
        read: dict[str, Any] = {
            name: readers[name](node, name) if name in readers else self.objects.read(node, name, section=name)
            for name, node in sections.items()
        }
        values = {name: value for name, value in read.items() if value is not None}
        if not all(name in values for name in REQUIRED):
            return None
        values.setdefault("run_dir", Path("runs") / values["experiment"])
        values |= {"locations": {name: node.location for name, node in sections.items()}}
        defaults = tuple(self.section_defaults)
        return ExperimentConfig(**values, source=source, overrides=overrides, section_defaults=defaults)

    # --- sections -------------------------------------------------------------------------------------------------

    def _experiment(self, node: Node, path: str) -> str | None:
        if isinstance(node.value, str) and _NAME.match(node.value):
            return node.value
        return self.refuse(node, path, "a name of letters, digits, '_', '-' and '.', as in wide_deep_movielens")

    def _seed(self, node: Node, path: str) -> int | None:
        if isinstance(node.value, int) and is_whole(node.value) and 0 <= node.value < 2**32:
            return node.value
        return self.refuse(node, path, "a whole number from 0 to 4294967295")

    def _run_dir(self, node: Node, path: str) -> Path | None:
        text = node.value
        if isinstance(text, str) and text.strip() and text.isprintable() and not has_reference(text):
            return Path(text)
        return self.refuse(node, path, "the path of a folder")

    def _mirror(self, node: Node, path: str) -> str | None:
        text = node.value
        if isinstance(text, str) and has_reference(text):
            wrong = wrong_reference(text)
        elif isinstance(text, str) and is_url(text):
            wrong = url_problem(text)
        else:
            return self.refuse(node, path, "the URL of a folder in a store, as in s3://bucket/run")
        return self.add(node.location, path, wrong) if wrong else text

    def _init_from(self, node: Node, path: str) -> Mapping[str, Any] | None:
        if isinstance(node.value, str):
            return {"path": node.value}
        if not isinstance(node.value, dict):
            return self.refuse(node, path, f"a path, or a mapping with the keys {', '.join(INIT_KEYS)}")
        self.objects.check_keys(node, path, INIT_KEYS)
        if node.get("path") is None:
            self.add(node.location, join(path, "path"), "is missing")
        kinds = ((str, "a path"), (dict, "a mapping of names"), (bool, "true or false"))
        for key, (kind, accepted) in zip(INIT_KEYS, kinds, strict=True):
            value = node.get(key)
            if value is not None and value.value is not None and not isinstance(value.value, kind):
                self.refuse(value, join(path, key), accepted)
        return node.plain()

    def _metrics(self, node: Node, path: str) -> tuple[str | ObjectSpec, ...] | None:
        if isinstance(node.value, dict) and "class_path" not in node.value:
            return self.refuse(node, path, "a list of metrics, each a name, or class_path and init_args")
        items = node.value if isinstance(node.value, tuple) else (node,)
        names = known_metrics()
        metrics: list[str | ObjectSpec | None] = []
        for index, item in enumerate(items):
            below = join(path, index) if isinstance(node.value, tuple) else path
            if isinstance(item.value, dict) or is_dotted(item.value):
                metrics.append(self.objects.read(item, below, section="metrics"))
            elif not isinstance(item.value, str):
                self.refuse(item, below, "the name of a metric, or class_path and init_args")
            elif not metric_known(item.value):
                self.refuse(item, below, f"{', '.join(sorted(names))}, or class_path", did_you_mean(item.value, names))
            else:
                metrics.append(item.value)
        return tuple(item for item in metrics if item is not None)

    def _data(self, node: Node, path: str) -> DataConfig | None:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, f"a mapping with the keys {', '.join(DATA_KEYS)}")
        self.objects.check_keys(node, path, DATA_KEYS)
        nodes = {key: child for key in DATA_KEYS if (child := node.get(key)) and child.value is not None}
        return DataConfig(**{key: self._source(child, join(path, key)) for key, child in nodes.items()})

    def _source(self, node: Node, path: str) -> ObjectSpec | None:
        """Read a dataset or stream; with features, a path to raw rows is accepted as well."""
        text: Any = node.value
        named = isinstance(text, str) and (has_reference(text) or _is_path_of_rows(text))
        if not self.has_features or not named:
            return self.objects.read(node, path, section="data")
        if wrong := wrong_reference(text):
            return self.add(node.location, path, wrong)
        if not has_reference(text) and not is_url(text) and not Path(text).exists():
            return self.refuse(node, path, "a file or folder of raw rows that exists, or class_path and init_args")
        kind = "trainer.streams.FileStream" if path == "data.stream" else "trainer.features.RawFiles"
        return ObjectSpec(kind, {"path": text}, location=node.location, path=path)

    def _features(self, node: Node, path: str) -> Mapping[str, Any] | None:
        keys = features_keys()
        if not isinstance(node.value, dict):
            return self.refuse(node, path, f"a mapping with the keys {', '.join(keys)}")
        self.objects.check_keys(node, path, keys)
        columns = node.get("columns")
        if columns is None or not isinstance(columns.value, tuple) or not columns.value:
            message = "takes a list of features, each a mapping with its kind"
            return self.add(node.location, join(path, "columns"), message)
        sound = [self._feature(item, join(join(path, "columns"), index)) for index, item in enumerate(columns.value)]
        if all(sound) and all(key in keys for key in node.value):
            try:
                make_features(node.plain())
            except (ConfigurationError, TypeError) as error:
                self.add(node.location, path, str(error))
        return node.plain()

    def _feature(self, node: Node, path: str) -> bool:
        """Report the problem of a feature; return whether it has none."""
        from ...features import KINDS
        from ...features.feature import as_feature

        if not isinstance(node.value, dict):
            return bool(self.refuse(node, path, "a mapping with kind and name"))
        named = node.get("kind") or Node(None, node.location)
        kind = named.value
        if not isinstance(kind, str) or kind not in KINDS:
            hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
            return bool(self.refuse(named, join(path, "kind"), ", ".join(KINDS), hint))
        accepted = ["kind", *KINDS[kind].__dataclass_fields__]
        self.objects.check_keys(node, path, accepted)
        if not all(key in accepted for key in node.value):
            return False
        try:
            as_feature(node.plain())
        except (ConfigurationError, TypeError) as error:
            argument = _FEATURE_ARGUMENT.match(str(error))
            if argument is not None and (entry := node.value.get(argument[1])) is not None:
                self.add(entry.location, join(path, argument[1]), str(error))
            else:
                self.add(node.location, path, str(error))
            return False
        return True

    def _callbacks(self, node: Node, path: str) -> tuple[ObjectSpec, ...] | None:
        if not isinstance(node.value, tuple):
            return self.refuse(node, path, "a list of callbacks, each with class_path and init_args")
        callbacks = [self.objects.read(item, join(path, i), section="callbacks") for i, item in enumerate(node.value)]
        return tuple(spec for spec in callbacks if spec is not None)

    def _keywords(self, node: Node, path: str) -> Mapping[str, Any] | None:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, "a mapping")
        signature, supplied = section_signature(path)
        entries = {}
        for key, entry in node.value.items():
            if key in supplied:
                self.add(entry.location, join(path, key), f"is given elsewhere: {supplied[key]}")
            else:
                entries[key] = entry
        free = [name for name in signature.names() if name not in supplied]
        keywords = self.objects.read_arguments(entries, path, signature, free)
        problems = value_problems(path, keywords) | (trainer_problems(keywords) if path == "trainer" else {})
        for key, message in problems.items():
            self.add(entries[key].node.location if key in entries else node.location, join(path, key), message)
        defaults = {name: p.default for name, p in signature.parameters.items() if name in free}
        filled = recordable(defaults, keywords)
        self.section_defaults += [join(path, name) for name in filled]
        return {**keywords, **filled}


def _is_path_of_rows(text: str) -> bool:
    """Return whether a text names a file or folder of rows rather than a class."""
    return text.lower().endswith(_ROWS) or "/" in text or Path(text).is_dir()

"""An experiment file to a checked `ExperimentConfig`, or everything that is wrong with it at once.

Nothing is run: no object is made, no data is read, nothing is compiled. The modules that class paths name are
imported, because only the real signatures tell which arguments are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checks import is_whole
from ..errors import did_you_mean, nearest
from ..masking import is_masked, remember_credentials
from ..models import MODELS
from . import rundir
from .declared import FEATURES_KEYS, feature_problems, initial_problems, is_path_of_rows
from .experiment_config import (
    DATA_KEYS,
    REQUIRED,
    SECTIONS,
    DataConfig,
    ExperimentConfig,
    ObjectSpec,
    to_plain,
)
from .extends import read_extended
from .problems import ConfigErrors, Place, Problem, show
from .resolve import UnresolvedError, has_reference, is_dotted, resolve, wrong_reference
from .sections import (
    known_metrics,
    metric_known,
    section_signature,
    supplied_names,
    trainer_problems,
    value_problems,
    wrong_kind,
)
from .signature import Signature, real_signature
from .tree import Entry, Node, apply_overrides, join

BETTER = "or name it as ${env:NAME} in the configuration from the start"
MOST_PROBLEMS = 200
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*\Z")


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Return the checked configuration of the YAML file `path`.

    Args:
        path: the file, or a run folder, whose ``config.yaml`` is read.
        overrides: ``"a.b=c"`` strings as given to ``--set``.

    Raises:
        ConfigErrors: anything is wrong with it; all problems at once.
    """
    path, overrides = Path(path), tuple(overrides)
    if path.is_dir() and (path / "config.yaml").is_file():
        path = path / "config.yaml"
    root, problems = apply_overrides(read_extended(path), overrides)
    reader = _Reader(problems)
    with rundir.project_paths(path):
        config = reader.read(root, path, overrides)
    if reader.problems or config is None:
        raise ConfigErrors(reader.problems)
    remember_credentials({name: to_plain(getattr(config, name)) for name in SECTIONS})
    return config


class _Reader:
    """Walks the tree once, building the configuration and collecting problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        self.has_features = False

    def add(self, place: Place, path: str, message: str) -> None:
        self.problems.append(Problem(place, path, message))
        if len(self.problems) == MOST_PROBLEMS:
            message = f"there may be more that is wrong; these are the first {MOST_PROBLEMS} problems"
            raise ConfigErrors([*self.problems, Problem(Place("configuration"), "", message)])

    def refuse(self, node: Node, path: str, accepts: str, hint: str = "") -> None:
        self.add(node.place, path, f"received {show(node.plain(), path)}; accepts {accepts}{hint}")

    def read(self, root: Node, source: Path, overrides: tuple[str, ...]) -> ExperimentConfig | None:
        if not isinstance(root.value, dict):
            self.refuse(root, "", f"a mapping with the keys {', '.join(SECTIONS)}")
            return None
        self._check_keys(root, "", SECTIONS)
        for name in _missing(REQUIRED, root.value, SECTIONS):
            self.add(root.place, name, "is missing")
        given = {name: root.get(name) for name in SECTIONS}
        self.has_features = given["features"] is not None and given["features"].value is not None
        readers: dict[str, Callable[[Node, str], Any]] = {
            "experiment": self._experiment,
            "seed": self._seed,
            "run_dir": self._run_dir,
            "metrics": self._metrics,
            "data": self._data,
            "features": self._features,
            "init_from": self._init_from,
            "callbacks": self._callbacks,
            **dict.fromkeys(("trainer", "fit", "online"), self._keywords),
            **dict.fromkeys(("network", "loss", "optimizer", "report"), self._section_object),
        }
        # a section that is null or was refused keeps its default
        given = {name: node for name, node in given.items() if node and (node.value is not None or name in REQUIRED)}
        values = {name: value for name, node in given.items() if (value := readers[name](node, name)) is not None}
        if not all(name in values for name in REQUIRED):
            return None
        values.setdefault("run_dir", Path("runs") / values["experiment"])
        return ExperimentConfig(**values, source=source, overrides=overrides)

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

    def _init_from(self, node: Node, path: str) -> Mapping[str, Any] | None:
        for problem in initial_problems(node, path):
            self.add(problem.place, problem.path, problem.message)
        return {"path": node.value} if isinstance(node.value, str) else node.plain()

    def _metrics(self, node: Node, path: str) -> tuple[str | ObjectSpec, ...] | None:
        if isinstance(node.value, dict) and "class_path" not in node.value:
            return self.refuse(node, path, "a list of metrics, each a name, or class_path and init_args")
        items = node.value if isinstance(node.value, tuple) else (node,)
        names = known_metrics()
        found: list[str | ObjectSpec | None] = []
        for place, item in enumerate(items):
            below = join(path, place) if node.is_list else path
            if item.is_mapping or is_dotted(item.value):
                found.append(self._object(item, below, section="metrics"))
            elif not isinstance(item.value, str):
                self.refuse(item, below, "the name of a metric, or class_path and init_args")
            elif not metric_known(item.value):
                self.refuse(item, below, f"{', '.join(sorted(names))}, or class_path", did_you_mean(item.value, names))
            else:
                found.append(item.value)
        return tuple(item for item in found if item is not None)

    def _data(self, node: Node, path: str) -> DataConfig | None:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, f"a mapping with the keys {', '.join(DATA_KEYS)}")
        self._check_keys(node, path, DATA_KEYS)
        given = {key: node.get(key) for key in DATA_KEYS}
        return DataConfig(
            **{
                key: self._source(child, join(path, key))
                for key, child in given.items()
                if child is not None and child.value is not None
            }
        )

    def _source(self, node: Node, path: str) -> ObjectSpec | None:
        """Read a dataset or stream; where there are features, the path of a file or folder of raw rows is one."""
        text: Any = node.value
        named = isinstance(text, str) and (has_reference(text) or is_path_of_rows(text))
        if not self.has_features or not named:
            return self._object(node, path, section="data")
        if wrong := wrong_reference(text):
            return self.add(node.place, path, wrong)
        if not has_reference(text) and not Path(text).exists():
            return self.refuse(node, path, "a file or folder of raw rows that exists, or class_path and init_args")
        kind = "trainer.streams.FileStream" if path == "data.stream" else "trainer.features.RawFiles"
        return ObjectSpec(kind, {"path": text}, place=node.place, path=path)

    def _features(self, node: Node, path: str) -> Mapping[str, Any] | None:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, f"a mapping with the keys {', '.join(FEATURES_KEYS)}")
        self._check_keys(node, path, FEATURES_KEYS)
        columns = node.get("columns")
        if columns is None or not isinstance(columns.value, tuple) or not columns.value:
            return self.add(node.place, join(path, "columns"), "takes a list of features, each a mapping with its kind")
        known = all(key in FEATURES_KEYS for key in node.value)
        for problem in feature_problems(node, path, together=known):
            self.add(problem.place, problem.path, problem.message)
        return node.plain()

    def _callbacks(self, node: Node, path: str) -> tuple[ObjectSpec, ...] | None:
        if not isinstance(node.value, tuple):
            return self.refuse(node, path, "a list of callbacks, each with class_path and init_args")
        found = [self._object(item, join(path, i), section="callbacks") for i, item in enumerate(node.value)]
        return tuple(spec for spec in found if spec is not None)

    def _section_object(self, node: Node, path: str) -> ObjectSpec | None:
        return self._object(node, path, section=path)

    def _keywords(self, node: Node, path: str) -> Mapping[str, Any] | None:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, "a mapping")
        signature, elsewhere = section_signature(path)
        entries = {}
        for key, entry in node.value.items():
            if key in elsewhere:
                self.add(entry.place, join(path, key), f"is given elsewhere: {elsewhere[key]}")
            else:
                entries[key] = entry
        free = [name for name in signature.names() if name not in elsewhere]
        keywords = self._arguments(entries, path, signature, free)
        problems = value_problems(keywords) | (trainer_problems(keywords) if path == "trainer" else {})
        for key, message in problems.items():
            self.add(entries[key].node.place if key in entries else node.place, join(path, key), message)
        defaults = {name: p.default for name, p in signature.parameters.items() if name in free}
        return {**keywords, **_recordable(defaults, keywords)}

    # --- objects --------------------------------------------------------------------------------------------------

    def _object(self, node: Node, path: str, section: str = "") -> ObjectSpec | None:
        """Read class_path and init_args, or a bare class path."""
        section = "eval_network" if path == "trainer.eval_network" else section
        if section == "network" and node.get("model") is not None:
            return self._model(node, path)
        if isinstance(node.value, str):
            class_node, arguments = node, Node({}, node.place)
        elif isinstance(node.value, dict):
            self._check_keys(node, path, ("class_path", "init_args"))
            found = node.get("class_path")
            if found is None:
                return self.add(node.place, join(path, "class_path"), "is missing")
            class_node, arguments = found, node.get("init_args") or Node({}, node.place)
        else:
            return self.refuse(node, path, "class_path and init_args, or a class path alone")
        class_place = join(path, "class_path") if node.is_mapping else path
        if not isinstance(class_node.value, str):
            return self.refuse(class_node, class_place, "a dotted path as in mindspore.nn.Adam")
        target: Any = None
        try:
            target = resolve(class_node.value, lambda value: not wrong_kind(value, str(class_node.value), section))
        except UnresolvedError as error:
            self.add(class_node.place, class_place, f"received {show(class_node.value)}; {error}")
        if target is not None:
            wrong = wrong_kind(target, class_node.value, section)
            if wrong:
                self.add(class_node.place, class_place, f"{class_node.value} {wrong}")
                target = None
        return self._with_arguments(class_node, arguments, path, target, section)

    def _model(self, node: Node, path: str) -> ObjectSpec | None:
        """Read the name of a network of `trainer.models`, its options beside it."""
        entries = dict(node.value) if isinstance(node.value, dict) else {}
        name = entries.pop("model").node
        if name.value not in MODELS:
            hint = did_you_mean(name.value, MODELS) if isinstance(name.value, str) else ""
            return self.refuse(name, join(path, "model"), f"{', '.join(MODELS)}; see `trainer models`", hint)
        for key in ("class_path", "init_args"):
            if key in entries:
                message = "goes without model; the options of a model stand beside its name"
                return self.add(entries[key].place, join(path, key), message)
        if not self.has_features:
            message = f"{name.value} reads declared columns; add the section features"
            self.add(name.place, join(path, "model"), message)
        class_path = f"trainer.models.{MODELS[name.value]}"
        class_node = Node(class_path, name.place)
        spec = self._with_arguments(class_node, Node(entries, node.place), path, resolve(class_path), "network", path)
        return None if spec is None else replace(spec, model=name.value)

    def _with_arguments(
        self, class_node: Node, arguments: Node, path: str, target: Any, section: str, below: str = ""
    ) -> ObjectSpec | None:
        below = below or join(path, "init_args")
        signature = real_signature(target) if target is not None else None
        supplied = supplied_names(section, signature, features=self.has_features or below == path)
        keywords: dict[str, Any] = {}
        positional: tuple[Any, ...] = ()
        if arguments.value is None or isinstance(arguments.value, dict):
            entries = dict(arguments.value or {})
            for name in supplied & set(entries):
                entry = entries.pop(name)
                self.add(entry.place, join(below, name), "is filled in; leave it out")
            free = None if signature is None else [name for name in signature.names() if name not in supplied]
            keywords = self._arguments(entries, below, signature, free)
        elif isinstance(arguments.value, tuple):
            positional = tuple(self._value(item, join(below, i)) for i, item in enumerate(arguments.value))
            self._check_count(arguments, below, signature)
        else:
            return self.refuse(arguments, below, "a mapping of arguments, or a list of positional ones")
        defaults: dict[str, Any] = {}
        if signature is not None:
            by_place = list(signature.parameters)[: len(positional)]
            needed = [name for name in signature.required if name not in {*supplied, *by_place}]
            written = arguments.value if isinstance(arguments.value, dict) else {}
            for name in _missing(needed, written, signature.names()):
                accepts = signature.accepts[name].text
                self.add(class_node.place, join(below, name), f"is missing; {signature.name} needs it ({accepts})")
            if not positional:
                rest = {n: p.default for n, p in signature.parameters.items() if n not in supplied}
                defaults = _recordable(rest, keywords)
        return ObjectSpec(str(class_node.value), keywords, positional, class_node.place, path, defaults)

    def _check_count(self, arguments: Node, path: str, signature: Signature | None) -> None:
        if signature is None or signature.positional is None or not isinstance(arguments.value, tuple):
            return
        if len(arguments.value) > signature.positional:
            at_most = f"at most {signature.positional} positional arguments"
            self.add(arguments.place, path, f"received {len(arguments.value)}; {signature.name} accepts {at_most}")

    def _arguments(
        self, entries: Mapping[Any, Entry], path: str, signature: Signature | None, free: list[str] | None
    ) -> dict[str, Any]:
        """Read keyword arguments; with a signature, check names and values against it."""
        values: dict[str, Any] = {}
        for key, entry in entries.items():
            below = join(path, key)
            if not isinstance(key, str):
                self.add(entry.place, below, f"an argument name is text; received {show(key)}")
                continue
            accepts = None if signature is None else signature.accepts.get(key)
            if signature is not None and free is not None and key not in free and key not in signature.extra_names:
                similar = did_you_mean(key, free)
                if not signature.open_keywords or similar:
                    known = f"accepts {', '.join(free)}" if free else "takes no arguments"
                    self.add(entry.place, below, f"{signature.name} has no argument {key!r}; {known}{similar}")
                    self._value(entry.node, below)
                    continue
            as_object = accepts is not None and accepts.takes_object and is_dotted(entry.node.value)
            value = self._object(entry.node, below) if as_object else self._value(entry.node, below)
            if accepts is not None and not accepts.fits(value) and not has_reference(value):
                self.refuse(entry.node, below, accepts.text, _hint(entry.node.value, accepts.text))
            values[key] = value
        return values

    def _value(self, node: Node, path: str) -> Any:
        if isinstance(node.value, dict):
            if "class_path" in node.value:
                return self._object(node, path)
            if "init_args" in node.value:
                self.add(node.place, join(path, "class_path"), "is missing")
            return {key: self._value(entry.node, join(path, key)) for key, entry in node.value.items()}
        if isinstance(node.value, tuple):
            return [self._value(item, join(path, i)) for i, item in enumerate(node.value)]
        if isinstance(node.value, str):
            if wrong := wrong_reference(node.value):
                self.add(node.place, path, wrong)
            elif is_masked(node.value):
                again = f"--set {path}=VALUE"
                self.add(node.place, path, f"was a credential and is not kept; give it again with {again}, {BETTER}")
        return node.value

    def _check_keys(self, node: Node, path: str, known: Iterable[str]) -> None:
        for key, entry in node.value.items() if isinstance(node.value, dict) else ():
            if key not in known:
                hint = did_you_mean(str(key), known)
                self.add(entry.place, join(path, key), f"unknown key; accepts {', '.join(known)}{hint}")


def _missing(required: Iterable[str], written: Iterable[Any], known: Iterable[str]) -> list[str]:
    """Return those `required` that are not `written`, not even misspelled: that is reported as an unknown key."""
    written, known = list(written), list(known)
    meant = {nearest(str(key), known) for key in written if key not in known}
    return [name for name in required if name not in written and name not in meant]


def _hint(value: Any, accepts: str) -> str:
    """Return advice for the spellings people expect YAML to take."""
    if isinstance(value, str) and "true or false" in accepts and value.lower() in ("yes", "no", "on", "off"):
        return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if is_dotted(value) and "dotted path" in accepts:
        try:
            resolve(value)
        except UnresolvedError as error:
            return f"; {error}"
    if isinstance(value, float) and value.is_integer() and "whole number" in accepts:
        return f"; write {int(value)}"
    return ""


def _recordable(defaults: Mapping[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """Return those defaults not `given` that YAML can hold; None is left out, as it says nothing."""
    given = set(given)
    return {name: _plain(value) for name, value in defaults.items() if name not in given and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in (bool, int, float, str)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value

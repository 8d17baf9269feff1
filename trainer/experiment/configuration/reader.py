"""Read and check the values of a configuration; record each problem and its line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError, model_validator

from ...errors import did_you_mean, nearest
from ...masking import is_masked
from ...models import MODELS
from .arguments import UNKNOWN, Signature, real_signature
from .class_paths import UnresolvedError, has_reference, is_dotted, resolve, wrong_reference
from .kinds import supplied_names, wrong_kind
from .object_spec import ObjectSpec, to_plain
from .problems import Problem, SourceLocation, dotted, format_value
from .yaml_tree import Tree

ENV_HINT = "or name it as ${env:NAME} in the configuration from the start"
MAX_PROBLEMS = 200
KeyPath = tuple[Any, ...]


class Section(BaseModel):
    """A mapping with fixed keys; null for an optional key means its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in optional}


_ARGUMENTS = "a mapping of arguments, or a list of positional ones"


class _ObjectMapping(Section):
    class_path: Annotated[StrictStr, Field(title="a dotted path as in mindspore.nn.Adam")]
    init_args: Annotated[dict[Any, Any] | list[Any] | None, Field(title=_ARGUMENTS)] = None


class Reader:
    """Reads a configuration, and collects its problems.

    Attributes:
        tree: the configuration with the location of each value.
        problems: the problems found so far.
        above: path of the section whose fields are being validated.
        has_features: whether there is a section `features`.
        defaults: dotted paths of arguments that a run recorded with default values. Those that a later version of the
            class has removed are ignored.
    """

    def __init__(self, tree: Tree, problems: Iterable[Problem], defaults: Collection[str] = ()) -> None:
        self.tree, self.problems, self.defaults = tree, list(problems), defaults
        self.has_features = tree.get(("features",)) is not None
        self.above: KeyPath = ()

    def add(self, path: KeyPath, message: str, *, of_key: bool = False, at: SourceLocation | None = None) -> None:
        """Record a problem of a value or key, up to `MAX_PROBLEMS`."""
        if len(self.problems) < MAX_PROBLEMS:
            location = at or self.tree.location(path, of_key=of_key)
            self.problems.append(Problem(location, dotted(path), message))
        elif len(self.problems) == MAX_PROBLEMS:
            message = f"these are the first {MAX_PROBLEMS} problems; there may be more"
            self.problems.append(Problem(SourceLocation("configuration"), "", message))

    def refuse(self, path: KeyPath, accepts: str, hint: str = "") -> None:
        """Record that the value at `path` is not accepted."""
        received = format_value(self.tree.get(path), dotted(path))
        self.add(path, f"received {received}; accepts {accepts}{hint}")

    def model(
        self, model: type[BaseModel], values: Any, path: KeyPath, signature: Signature | None = None
    ) -> BaseModel | None:
        """Return `values` as a model, or None after recording their problems.

        Args:
            signature: signature of the class that takes the fields as arguments; problems name it.
        """
        texts: dict[Any, Any] = {field.alias or name: field.title for name, field in model.model_fields.items()}
        if signature is not None:
            texts = {name: parameter.text for name, parameter in signature.parameters.items() if name in texts}
        if not isinstance(values, dict):
            return self.refuse(path, f"a mapping with the keys {', '.join(texts)}")
        above, self.above = self.above, path
        try:
            return model.model_validate(values, context=self)
        except ValidationError as error:
            kinds = {problem["loc"][0]: problem["type"] for problem in reversed(error.errors(include_url=False))}
        finally:
            self.above = above
        unknown = [key for key, kind in kinds.items() if kind in ("extra_forbidden", "invalid_key")]
        suggested = {nearest(str(key), texts) for key in unknown}
        for key in kinds:
            if key in unknown:
                similar = did_you_mean(str(key), texts)
                if signature is None or not signature.open_keywords or similar:
                    what = "unknown key" if signature is None else f"{signature.name} has no argument {key!r}"
                    known = f"accepts {', '.join(texts)}" if texts else "takes no arguments"
                    self.add((*path, key), f"{what}; {known}{similar}", of_key=True)
            elif key not in values:
                if key not in suggested:
                    needs = "" if signature is None else f"; {signature.name} needs it ({texts[key]})"
                    self.add((*path, key), f"is missing{needs}", at=self._object_location(path))
            else:
                self.refuse((*path, key), str(texts[key]), _hint(values[key], str(texts[key])))
        return None

    def _object_location(self, path: KeyPath) -> SourceLocation:
        """Return the location of the class path or model name at `path`, else of `path`."""
        path = path[:-1] if path and path[-1] == "init_args" else path
        value = self.tree.get(path)
        key = next((key for key in ("class_path", "model") if isinstance(value, dict) and key in value), None)
        return self.tree.location(path if key is None else (*path, key))

    def object(self, value: Any, path: KeyPath, section: str = "") -> ObjectSpec | None:
        """Read an object: class_path and init_args, or only a class path."""
        section = "eval_network" if path == ("trainer", "eval_network") else section
        if section == "network" and isinstance(value, dict) and value.get("model") is not None:
            return self._network_by_name(value, path)
        if isinstance(value, str):
            location_path, value = path, {"class_path": value}
        elif isinstance(value, dict):
            location_path = (*path, "class_path")
            self.model(_ObjectMapping, value, path)
        else:
            return self.refuse(path, "class_path and init_args, or only a class path")
        class_path, target = value.get("class_path"), None
        if isinstance(class_path, str):
            try:
                target = resolve(class_path, lambda named: not wrong_kind(named, class_path, section))
            except UnresolvedError as error:
                self.add(location_path, f"received {format_value(class_path)}; {error}")
            problem = "" if target is None else wrong_kind(target, class_path, section)
            if problem:
                self.add(location_path, f"{class_path} {problem}")
                target = None
        signature = UNKNOWN if target is None else real_signature(target)
        supplied = supplied_names(section, signature, features=self.has_features)
        written, init_path = value.get("init_args") or {}, (*path, "init_args")
        spec = ObjectSpec(str(class_path), location=self.tree.location(location_path), path=dotted(path))
        if isinstance(written, dict):
            return self._with_arguments(spec, written, init_path, signature, supplied)
        if not isinstance(written, list):
            return spec
        args = tuple(self.value(item, (*init_path, index)) for index, item in enumerate(written))
        most = signature.positional
        if most is not None and len(args) > most:
            message = f"received {len(args)}; {signature.name} accepts at most {most} positional arguments"
            self.add(init_path, message)
        excluded = {*supplied, *list(signature.parameters)[: len(args)]}
        self.model(signature.model(excluded), {}, init_path, signature)
        return replace(spec, args=args)

    def _network_by_name(self, value: dict[Any, Any], path: KeyPath) -> ObjectSpec | None:
        """Read a network given by its name in `trainer.models` and its options."""
        name, location_path = value["model"], (*path, "model")
        if name not in list(MODELS):
            hint = did_you_mean(name, MODELS) if isinstance(name, str) else ""
            return self.refuse(location_path, f"{', '.join(MODELS)}; see `trainer models`", hint)
        if key := next((key for key in ("class_path", "init_args") if key in value), ""):
            message = "cannot be combined with model; give the options of a model next to its name"
            return self.add((*path, key), message, of_key=True)
        if not self.has_features:
            self.add(location_path, f"{name} reads declared columns; add the section features")
        options = {key: item for key, item in value.items() if key != "model"}
        class_path = f"trainer.models.{MODELS[name]}"
        signature = real_signature(resolve(class_path))
        supplied = supplied_names("network", signature, features=True)
        spec = ObjectSpec(class_path, location=self.tree.location(location_path), path=dotted(path), model=name)
        return self._with_arguments(spec, options, path, signature, supplied)

    def by_arguments(self, class_path: str, written: dict[Any, Any], path: KeyPath) -> ObjectSpec:
        """Read a section that holds the arguments of the class `class_path`."""
        spec = ObjectSpec(class_path, location=self.tree.location(path), path=dotted(path))
        return self._with_arguments(spec, written, path, real_signature(resolve(class_path)), set())

    def _with_arguments(
        self, spec: ObjectSpec, written: dict[Any, Any], path: KeyPath, signature: Signature, supplied: set[str]
    ) -> ObjectSpec:
        filled = dict.fromkeys(supplied, "is filled in; leave it out")
        values = self.arguments(written, path, signature, filled)
        return replace(spec, init_args=values, defaults=recordable(signature, {*supplied, *values}))

    def arguments(
        self, written: Mapping[Any, Any], path: KeyPath, signature: Signature, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Read keyword arguments, and check them against a signature.

        Args:
            given: arguments that other sections supply, each mapped to the problem to record.
        """
        values = {}
        for key, item in written.items():
            if key in given:
                self.add((*path, key), given[key], of_key=True)
                continue
            parameter = signature.parameters.get(key)
            if parameter is None and dotted((*path, key)) in self.defaults:
                continue
            as_object = parameter is not None and is_dotted(item) and parameter.takes_object
            values[key] = self.object(item, (*path, key)) if as_object else self.value(item, (*path, key))
        checked = {key: value for key, value in values.items() if not has_reference(value)}
        referring = set(values) - set(checked)
        self.model(signature.model({*given, *referring}), checked, path, signature)
        return values

    def value(self, value: Any, path: KeyPath) -> Any:
        """Read a plain value; objects inside it become `ObjectSpec`."""
        if isinstance(value, dict):
            if "class_path" in value or "init_args" in value:
                return self.object(value, path)
            return {key: self.value(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, str):
            if problem := wrong_reference(value):
                self.add(path, problem)
            elif is_masked(value):
                message = f"was a credential and is not kept; give it again with --set {dotted(path)}=VALUE, {ENV_HINT}"
                self.add(path, message)
        return value


def _hint(value: Any, accepts: str) -> str:
    """Return advice for a value that was not accepted, such as yes instead of true."""
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


def recordable(signature: Signature, names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults that YAML can represent, except those of `names`."""
    excluded = set(names)
    defaults = {name: p.default for name, p in signature.parameters.items() if name not in excluded}
    return {name: to_plain(value) for name, value in defaults.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else type(value) in (bool, int, float, str)

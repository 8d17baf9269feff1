"""Reads an object of a configuration and checks it against its signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import did_you_mean, nearest
from ...masking import is_masked
from ...models import MODELS
from .class_paths import UnresolvedError, has_reference, is_dotted, resolve, wrong_reference
from .experiment_config import ObjectSpec
from .problems import ConfigErrors, Problem, SourceLocation, format_value, join
from .sections import supplied_names, wrong_kind
from .signature import Signature, real_signature
from .yaml_tree import Entry, Node

ENV_HINT = "or name it as ${env:NAME} in the configuration from the start"
MOST_PROBLEMS = 200


class ObjectReader:
    """Reads objects and collects the problems of a configuration."""

    def __init__(self, problems: Iterable[Problem], has_features: bool) -> None:
        self.problems = list(problems)
        self.has_features = has_features

    def add(self, location: SourceLocation, path: str, message: str) -> None:
        """Report a problem; raise ConfigErrors when there are too many."""
        self.problems.append(Problem(location, path, message))
        if len(self.problems) == MOST_PROBLEMS:
            message = f"there may be more that is wrong; these are the first {MOST_PROBLEMS} problems"
            raise ConfigErrors([*self.problems, Problem(SourceLocation("configuration"), "", message)])

    def refuse(self, node: Node, path: str, accepts: str, hint: str = "") -> None:
        """Report a value that is not accepted."""
        self.add(node.location, path, f"received {format_value(node.plain(), path)}; accepts {accepts}{hint}")

    def read(self, node: Node, path: str, section: str = "") -> ObjectSpec | None:
        """Read class_path and init_args, or a bare class path."""
        section = "eval_network" if path == "trainer.eval_network" else section
        if section == "network" and node.get("model") is not None:
            return self._model(node, path)
        if isinstance(node.value, str):
            class_node, arguments = node, Node({}, node.location)
        elif isinstance(node.value, dict):
            self.check_keys(node, path, ("class_path", "init_args"))
            class_entry = node.get("class_path")
            if class_entry is None:
                return self.add(node.location, join(path, "class_path"), "is missing")
            class_node, arguments = class_entry, node.get("init_args") or Node({}, node.location)
        else:
            return self.refuse(node, path, "class_path and init_args, or a class path alone")
        class_field = join(path, "class_path") if isinstance(node.value, dict) else path
        if not isinstance(class_node.value, str):
            return self.refuse(class_node, class_field, "a dotted path as in mindspore.nn.Adam")
        target: Any = None
        try:
            target = resolve(class_node.value, lambda value: not wrong_kind(value, str(class_node.value), section))
        except UnresolvedError as error:
            self.add(class_node.location, class_field, f"received {format_value(class_node.value)}; {error}")
        if target is not None:
            wrong = wrong_kind(target, class_node.value, section)
            if wrong:
                self.add(class_node.location, class_field, f"{class_node.value} {wrong}")
                target = None
        return self._with_arguments(class_node, arguments, path, target, section)

    def _model(self, node: Node, path: str) -> ObjectSpec | None:
        """Read the name of a network in `trainer.models` and its options."""
        entries = dict(node.value) if isinstance(node.value, dict) else {}
        name = entries.pop("model").node
        if name.value not in MODELS:
            hint = did_you_mean(name.value, MODELS) if isinstance(name.value, str) else ""
            return self.refuse(name, join(path, "model"), f"{', '.join(MODELS)}; see `trainer models`", hint)
        for key in ("class_path", "init_args"):
            if key in entries:
                message = "goes without model; the options of a model stand beside its name"
                return self.add(entries[key].location, join(path, key), message)
        if not self.has_features:
            message = f"{name.value} reads declared columns; add the section features"
            self.add(name.location, join(path, "model"), message)
        class_path = f"trainer.models.{MODELS[name.value]}"
        class_node = Node(class_path, name.location)
        arguments = Node(entries, node.location)
        spec = self._with_arguments(class_node, arguments, path, resolve(class_path), "network", path)
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
                self.add(entry.location, join(below, name), "is filled in; leave it out")
            free = None if signature is None else [name for name in signature.names() if name not in supplied]
            keywords = self.read_arguments(entries, below, signature, free)
        elif isinstance(arguments.value, tuple):
            positional = tuple(self._value(item, join(below, i)) for i, item in enumerate(arguments.value))
            most = None if signature is None else signature.positional
            if signature is not None and most is not None and len(positional) > most:
                message = f"received {len(positional)}; {signature.name} accepts at most {most} positional arguments"
                self.add(arguments.location, below, message)
        else:
            return self.refuse(arguments, below, "a mapping of arguments, or a list of positional ones")
        defaults: dict[str, Any] = {}
        if signature is not None:
            positional_names = list(signature.parameters)[: len(positional)]
            needed = [name for name in signature.required if name not in {*supplied, *positional_names}]
            written = arguments.value if isinstance(arguments.value, dict) else {}
            for name in missing_keys(needed, written, signature.names()):
                accepts = signature.accepts[name].text
                self.add(class_node.location, join(below, name), f"is missing; {signature.name} needs it ({accepts})")
            if not positional:
                rest = {n: p.default for n, p in signature.parameters.items() if n not in supplied}
                defaults = recordable(rest, keywords)
        return ObjectSpec(str(class_node.value), keywords, positional, class_node.location, path, defaults)

    def read_arguments(
        self, entries: Mapping[Any, Entry], path: str, signature: Signature | None, free: list[str] | None
    ) -> dict[str, Any]:
        """Read keyword arguments; with a signature, check names and values against it."""
        values: dict[str, Any] = {}
        for key, entry in entries.items():
            below = join(path, key)
            if not isinstance(key, str):
                self.add(entry.location, below, f"an argument name is text; received {format_value(key)}")
                continue
            accepts = None if signature is None else signature.accepts.get(key)
            if signature is not None and free is not None and key not in free and key not in signature.extra_names:
                similar = did_you_mean(key, free)
                if not signature.open_keywords or similar:
                    known = f"accepts {', '.join(free)}" if free else "takes no arguments"
                    self.add(entry.location, below, f"{signature.name} has no argument {key!r}; {known}{similar}")
                    self._value(entry.node, below)
                    continue
            as_object = accepts is not None and accepts.takes_object and is_dotted(entry.node.value)
            value = self.read(entry.node, below) if as_object else self._value(entry.node, below)
            if accepts is not None and not accepts.fits(value) and not has_reference(value):
                self.refuse(entry.node, below, accepts.text, _hint(entry.node.value, accepts.text))
            values[key] = value
        return values

    def _value(self, node: Node, path: str) -> Any:
        if isinstance(node.value, dict):
            if "class_path" in node.value:
                return self.read(node, path)
            if "init_args" in node.value:
                self.add(node.location, join(path, "class_path"), "is missing")
            return {key: self._value(entry.node, join(path, key)) for key, entry in node.value.items()}
        if isinstance(node.value, tuple):
            return [self._value(item, join(path, i)) for i, item in enumerate(node.value)]
        if isinstance(node.value, str):
            if wrong := wrong_reference(node.value):
                self.add(node.location, path, wrong)
            elif is_masked(node.value):
                message = f"was a credential and is not kept; give it again with --set {path}=VALUE, {ENV_HINT}"
                self.add(node.location, path, message)
        return node.value

    def check_keys(self, node: Node, path: str, known: Iterable[str]) -> None:
        """Report the keys that are not `known`."""
        for key, entry in node.value.items() if isinstance(node.value, dict) else ():
            if key not in known:
                hint = did_you_mean(str(key), known)
                self.add(entry.location, join(path, key), f"unknown key; accepts {', '.join(known)}{hint}")


def missing_keys(required: Iterable[str], written: Iterable[Any], known: Iterable[str]) -> list[str]:
    """Return the `required` names not `written`, nor misspelled as an unknown key."""
    written, known = list(written), list(known)
    meant = {nearest(str(key), known) for key in written if key not in known}
    return [name for name in required if name not in written and name not in meant]


def _hint(value: Any, accepts: str) -> str:
    """Return a hint for spellings that YAML 1.2 does not accept, such as yes for true."""
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


def recordable(defaults: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults not `names` that YAML can represent, without None."""
    names = set(names)
    return {name: _plain(value) for name, value in defaults.items() if name not in names and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in (bool, int, float, str)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value

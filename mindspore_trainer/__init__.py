"""`trainer` and `callbacks` under a name that no script's own module hides.

    from mindspore_trainer import Trainer
    from mindspore_trainer.callbacks import ModelCheckpoint
    from mindspore_trainer.trainer.streams import KafkaStream

A user's own ``trainer.py`` or ``callbacks.py`` beside the script is found in place of the package of that name. The
package is then loaded as ``mindspore_trainer.trainer`` or ``mindspore_trainer.callbacks``, and the user's module stays
what its name means. Where nothing is hidden, these two are other names of the plain packages: there is one copy of
every module either way.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer import Model as Model
    from trainer import RecModel as RecModel
    from trainer import Trainer as Trainer

_ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trainer", "callbacks")
_homes: dict[str, str] = {}


def home_of(package: str) -> str:
    """Return the name under which `package` ("trainer" or "callbacks") is imported; decided once.

    That is the name itself unless a module of the user's is found there.
    """
    if package not in _homes:
        _homes[package] = package if hidden_by(package) is None else f"{__name__}.{package}"
    return _homes[package]


def hidden_by(package: str) -> str | None:
    """Return the file or folder that ``import <package>`` finds in place of ours, or None."""
    module = sys.modules.get(package)
    if module is not None:
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    else:
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    found = [place for place in places if place is not None]
    ours = {_ROOT / package, _ROOT / package / "__init__.py"}
    if any(Path(place).resolve() in ours for place in found):
        return None
    return found[0] if found else "nothing"


class _Alias:
    """Loads a module under a second name: the module object of the first name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that `name` stands for."""
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the specification, which the import under the second name has replaced."""
        module.__spec__ = self.spec


class _Redirecting(SourceFileLoader):
    """Runs one of our modules with imports of `trainer` and `callbacks` that reach our packages, not the user's files.

    Python reads ``__import__`` from the ``__builtins__`` of the importing module, so no other module is affected.
    """

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code with its own ``__import__``."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import_ours}
        super().exec_module(module)


def _import_ours(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> ModuleType:
    package, _, rest = name.partition(".")
    if level == 0 and package in PACKAGES and fromlist:
        name = f"{home_of(package)}.{rest}".rstrip(".")
    return builtins.__import__(name, globals, locals, fromlist or (), level)


class _Finder:
    """Finds ``mindspore_trainer.trainer``, ``mindspore_trainer.callbacks`` and their modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return the module's specification; None leaves it to Python's own finders."""
        prefix = f"{__name__}."
        plain = name.removeprefix(prefix)
        package, _, inner = plain.partition(".")
        if package not in PACKAGES or (plain == name and not inner):
            return None
        home = home_of(package)
        if plain != name and home == package:
            return ModuleSpec(name, _Alias(plain)) if importlib.util.find_spec(plain) else None  # type: ignore[arg-type]
        if (plain == name and home != package) or all(home_of(other) == other for other in PACKAGES):
            return None
        file = _ROOT.joinpath(*plain.split("."))
        folder = file.is_dir()
        file = file / "__init__.py" if folder else file.with_suffix(".py")
        if not file.is_file():
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_Redirecting(name, str(file)),
            submodule_search_locations=[str(file.parent)] if folder else None,
        )


# first, or the path of a package would lead to a second copy of what is below it
sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]


def _trainer() -> ModuleType:
    return importlib.import_module(home_of("trainer"))


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":  # asked for by the import system
        raise AttributeError(name)
    return getattr(_trainer(), name)


def __dir__() -> list[str]:
    return sorted({*PACKAGES, *dir(_trainer())})

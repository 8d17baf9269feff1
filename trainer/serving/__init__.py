"""Published models: `Publish` writes versions, `ServedModel` follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

if TYPE_CHECKING:
    from ..features.feature_files import read_features as read_features
    from .exported_model import Exported as Exported
    from .exported_model import export_model as export_model
    from .publisher import Publish as Publish
    from .served_model import ServedModel as ServedModel
    from .versions import Version as Version
    from .versions import Versions as Versions

_HOMES = declared_imports(__file__)
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

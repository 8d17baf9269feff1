"""Published models: `Publish` writes versions, `ServedModel` follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore_trainer.lazy import lazy_names

if TYPE_CHECKING:
    from .exported_model import Exported, export_model
    from .graph_export import read_features
    from .publisher import Publish
    from .served_model import ServedModel
    from .shadow import ShadowScoring
    from .versions import Version, Versions

__all__ = [
    "Exported",
    "Publish",
    "ServedModel",
    "ShadowScoring",
    "Version",
    "Versions",
    "export_model",
    "read_features",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Exported": ".exported_model",
        "Publish": ".publisher",
        "ServedModel": ".served_model",
        "ShadowScoring": ".shadow",
        "Version": ".versions",
        "Versions": ".versions",
        "export_model": ".exported_model",
        "read_features": ".graph_export",
    },
)

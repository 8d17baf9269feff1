"""A model that is trained and served at once: `Publish` writes versions, `ServedModel` follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore_trainer.lazy import lazy_names

if TYPE_CHECKING:
    from .publisher import Publish
    from .served_model import ServedModel
    from .shadow import ShadowScoring
    from .versions import Version, Versions

__all__ = ["Publish", "ServedModel", "ShadowScoring", "Version", "Versions"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Publish": ".publisher",
        "ServedModel": ".served_model",
        "ShadowScoring": ".shadow",
        "Version": ".versions",
        "Versions": ".versions",
    },
)

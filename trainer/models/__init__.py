"""Recommender networks by name, one file per paper, built on declared features."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

from ..checks import choice

if TYPE_CHECKING:
    from .all_items import AllItems as AllItems
    from .autoint import AutoInt as AutoInt
    from .bpr import BPR as BPR
    from .bpr import BPRLoss as BPRLoss
    from .bst import BST as BST
    from .dcn import DCNv2 as DCNv2
    from .deepfm import DeepFM as DeepFM
    from .din import DIN as DIN
    from .dlrm import DLRM as DLRM
    from .esmm import ESMM as ESMM
    from .fm import FM as FM
    from .gbce import GBCE as GBCE
    from .hstu import HSTU as HSTU
    from .in_batch_softmax import InBatchSoftmax as InBatchSoftmax
    from .item_index import ItemIndex as ItemIndex
    from .logistic_regression import LogisticRegression as LogisticRegression
    from .masknet import MaskNet as MaskNet
    from .mmoe import MMoE as MMoE
    from .ple import PLE as PLE
    from .retrieval import item_vectors as item_vectors
    from .retrieval import read_vectors as read_vectors
    from .retrieval import top_items as top_items
    from .retrieval import user_vectors as user_vectors
    from .retrieval import write_vectors as write_vectors
    from .sasrec import SASRec as SASRec
    from .two_tower import TwoTower as TwoTower
    from .wide_deep import WideDeep as WideDeep

MODELS = {
    "lr": "LogisticRegression",
    "fm": "FM",
    "wide_deep": "WideDeep",
    "deepfm": "DeepFM",
    "dcn_v2": "DCNv2",
    "autoint": "AutoInt",
    "masknet": "MaskNet",
    "dlrm": "DLRM",
    "din": "DIN",
    "bst": "BST",
    "mmoe": "MMoE",
    "ple": "PLE",
    "esmm": "ESMM",
    "two_tower": "TwoTower",
    "bpr": "BPR",
    "sasrec": "SASRec",
    "hstu": "HSTU",
}
_HOMES = declared_imports(__file__)
__all__ = ["MODELS", "describe", *sorted(_HOMES)]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


def describe(name: str | None = None) -> str:
    """Describe all models briefly (name, paper, options), or one model in full.

    Raises:
        ConfigurationError: there is no model with this name.
    """
    models = sys.modules[__name__]
    if name is not None:
        model = getattr(models, MODELS[choice("a model", name, MODELS)])
        about = (inspect.getmodule(model).__doc__ or "").strip()
        return f"{about}\n\n{inspect.getdoc(model)}\n\nin YAML: network: {{model: {name}}}, options beside the name"
    lines = []
    for name, class_name in MODELS.items():
        model = getattr(models, class_name)
        paper = (inspect.getmodule(model).__doc__ or "").splitlines()[0]
        parameters = inspect.signature(model).parameters.values()
        options = ", ".join(_as_in_yaml(parameter) for parameter in parameters if parameter.name != "features")
        lines += [f"{name:<10} {paper}", f"{'':<10} options: {options or 'none'}"]
    return "\n".join(lines)


def _as_in_yaml(parameter: inspect.Parameter) -> str:
    default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
    return str(parameter.replace(annotation=parameter.empty, default=default))

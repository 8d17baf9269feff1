"""Experiments from YAML: schema, loader, instantiation and the command line."""

from __future__ import annotations

from .experiment_config import DataConfig, ExperimentConfig, ObjectSpec
from .instantiate import Experiment, build, instantiate
from .loader import load_config
from .problems import ConfigErrors, Problem, SourceLocation

__all__ = [
    "ConfigErrors",
    "DataConfig",
    "Experiment",
    "ExperimentConfig",
    "ObjectSpec",
    "Problem",
    "SourceLocation",
    "build",
    "instantiate",
    "load_config",
]

"""Experiments in YAML: schema, loader, instantiation and the command line."""

from __future__ import annotations

from .configuration.experiment_config import DataConfig, ExperimentConfig
from .configuration.instantiate import Experiment, build, instantiate
from .configuration.loader import load_config
from .configuration.object_spec import ObjectSpec
from .configuration.problems import ConfigErrors, Problem, SourceLocation

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

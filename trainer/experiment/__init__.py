"""Experiments from YAML: schema, loader, instantiation and the command line."""

from __future__ import annotations

from trainer.experiment.instantiate import Experiment, build, instantiate
from trainer.experiment.loader import load_config
from trainer.experiment.problems import ConfigErrors, Place, Problem
from trainer.experiment.schema import DataConfig, ExperimentConfig, ObjectSpec

__all__ = [
    "ConfigErrors",
    "DataConfig",
    "Experiment",
    "ExperimentConfig",
    "ObjectSpec",
    "Place",
    "Problem",
    "build",
    "instantiate",
    "load_config",
]

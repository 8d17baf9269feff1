"""Load a checked `ExperimentConfig`, or report all problems at once.

Loading creates no objects, reads no data and compiles nothing. It imports the modules of class paths, to check the
arguments against the real signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...checkpoint.catalog import available
from ...masking import remember_credentials
from ..runs import run_folder
from .class_paths import has_reference
from .experiment_config import ExperimentConfig
from .extends import read_extended
from .object_spec import to_plain
from .problems import ConfigErrors, Problem, SourceLocation
from .reader import Reader
from .yaml_tree import Tree, apply_overrides

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Return the checked configuration of the YAML file `path`.

    Args:
        path: the file, or a run folder that contains ``config.yaml``.
        overrides: ``"a.b=c"`` strings as given to ``--set``.

    Raises:
        ConfigErrors: the configuration has problems; all of them are reported at once.
    """
    path, overrides = Path(path), tuple(overrides)
    if path.is_dir() and (path / "config.yaml").is_file():
        path = path / "config.yaml"
    if path.suffix.lower() in _TABLES and path.is_file():
        message = f"is a table of rows, not an experiment; `trainer init {path}` writes an experiment for it"
        raise ConfigErrors([Problem(SourceLocation(str(path)), "", message)])
    tree, problems = apply_overrides(_without_lost_statistics(read_extended(path), path), overrides)
    reader = Reader(tree, problems, run_folder.recorded_defaults(path.parent, overrides))
    with run_folder.project_paths(path):
        config = reader.model(ExperimentConfig, tree.value, ())
    if reader.problems or not isinstance(config, ExperimentConfig):
        raise ConfigErrors(reader.problems)
    remember_credentials(to_plain(config))
    if "run_dir" not in config.model_fields_set:
        config = config.model_copy(update={"run_dir": Path("runs") / config.experiment})
    return config.read_from(path, overrides, tree)


def _without_lost_statistics(tree: Tree, path: Path) -> Tree:
    """Remove `features.fitted` if its folder was not moved along with the run.

    The snapshots of the run hold the statistics.
    """
    features = tree.get(("features",))
    fitted = features.get("fitted") if isinstance(features, dict) else None
    if path.name != run_folder.CONFIG or not isinstance(fitted, str) or has_reference(fitted) or Path(fitted).exists():
        return tree
    if not available(path.parent / run_folder.CHECKPOINTS):
        return tree
    others = {name: value for name, value in features.items() if name != "fitted"}
    return Tree({**tree.value, "features": others}, tree.locations)

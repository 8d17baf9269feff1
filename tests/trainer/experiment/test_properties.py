"""Whatever is in the file, the loader answers with a configuration or with ConfigErrors.

Set TRAINER_PROPERTY_EXAMPLES to try more cases than the default.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import mindspore  # noqa: F401 (changes the recursion limit, which hypothesis would notice later)
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainer.experiment.configuration.experiment_config import SECTIONS
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.configuration.problems import ConfigErrors
from trainer.experiment.configuration.yaml_tree import dump, parse_tree

CASES = int(os.environ.get("TRAINER_PROPERTY_EXAMPLES", "100"))
many = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))

# Class paths that exist, nearly exist and cannot exist; none of them does anything when imported.
CLASS_PATHS = st.sampled_from(
    [
        "mindspore.nn.Dense",
        "mindspore.nn.Adam",
        "mindspore.nn.Adm",
        "mindspore.nn",
        "mindspore.float16",
        "mindspore.nn.SequentialCell",
        "mindspore.train.LossMonitor",
        "collections.OrderedDict",
        "builtins.int",
        "a..b",
        ".",
        "no_such_module.Thing",
        "1.2",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | CLASS_PATHS
)
KEYS = st.sampled_from(
    [*SECTIONS, "class_path", "init_args", "train", "valid", "stream", "epochs", "amp_level", "params", "in_channels"]
) | st.text(max_size=6, alphabet="abc_<.")
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS | st.integers(0, 3), inner, max_size=5)
        | st.fixed_dictionaries({"class_path": CLASS_PATHS, "init_args": inner})
    ),
    max_leaves=25,
)
VALID = {
    "experiment": "tiny",
    "seed": 1,
    "network": {"class_path": "mindspore.nn.Dense", "init_args": {"in_channels": 4, "out_channels": 1}},
    "loss": "mindspore.nn.BCEWithLogitsLoss",
    "optimizer": {"class_path": "mindspore.nn.Adam", "init_args": {"learning_rate": 1e-3, "beta1": 0.9}},
    "metrics": ["auc"],
    "trainer": {"amp_level": "O0", "clip_norm": 1.0},
    "data": {"train": {"class_path": "mindspore.dataset.NumpySlicesDataset", "init_args": {"data": [1, 2]}}},
    "fit": {"epochs": 3},
    "callbacks": [{"class_path": "mindspore.train.LossMonitor"}],
}


@st.composite
def mutated(draw: st.DrawFn) -> dict:
    """Return a valid configuration in which one to three values have been replaced, dropped or renamed."""

    def copy(value):
        if isinstance(value, dict):
            return {key: copy(item) for key, item in value.items()}
        return [copy(item) for item in value] if isinstance(value, list) else value

    config = copy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        here = config
        while True:
            key = draw(st.sampled_from(sorted(here, key=str) if isinstance(here, dict) else range(len(here))))
            if not isinstance(here[key], dict | list) or not here[key] or draw(st.booleans()):
                break
            here = here[key]
        action = draw(st.sampled_from(["replace", "drop", "rename"]))
        if action == "replace" or not isinstance(here, dict) or len(here) == 1:
            here[key] = draw(TREES)
        elif action == "drop":
            del here[key]
        else:
            here[draw(KEYS)] = here.pop(key)
    return config


def load(text: str | bytes, *overrides: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            config = load_config(path, overrides).to_dict()
        except ConfigErrors as errors:
            problems, message = errors.problems, str(errors)
        else:
            path.write_text(dump(config))
            assert repr(load_config(path).to_dict()) == repr(config)  # NaN equals itself so
            return
    lines = len(text.splitlines()) + 1  # an end that is missing is named in the line after the last
    assert problems
    for problem in problems:
        assert problem.message.strip(), problem
        assert str(problem.location) in message, problem
        if problem.location.line:
            assert problem.location.source == str(path), problem
            assert problem.location.line <= lines, problem
            assert problem.location.column >= 1, problem
        else:
            assert problem.location.source in (str(path), *(f"--set {override}" for override in overrides)), problem


@many
@given(TREES)
def test_random_trees_give_only_documented_errors(tree):
    load(dump(tree))


@pytest.mark.long
@many
@given(mutated())
def test_mutated_configurations_give_only_documented_errors(config):
    load(dump(config))


@many
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"? !!binary a\n: b")
@example(b"a: !!float x")
@example(b"<<: 1")
@example(b"&a a: *a")
def test_random_bytes_give_only_documented_errors(data):
    load(data)


@many
@given(st.text("abc:[]{}&*!|>'\"%@`#,?- \n\t<~0123456789.e_", max_size=60))
def test_random_yaml_like_text_gives_only_documented_errors(text):
    load(text)


@pytest.mark.long
@many
@given(st.lists(st.text("abc.=[]{}:0123 ", max_size=12) | KEYS.map(lambda key: f"{key}.x=1"), max_size=3))
def test_random_overrides_give_only_documented_errors(overrides):
    load(dump(VALID), *overrides)


@many
@given(TREES)
def test_what_is_written_is_read_back_as_the_same(tree):
    again = parse_tree(dump({"value": tree}), "text").value
    assert repr(again) == repr({"value": tree})  # NaN is not equal to itself

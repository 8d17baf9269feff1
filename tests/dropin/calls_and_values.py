"""`mindspore.Model` and `trainer.Model` on the same data: the same calls in the same order, the same values to the bit.

Every case is a function of the class, in one of the modules beside this one. Where something stays different
docs/migrating.md says why; a difference that goes away fails here as well. Run by test_calls_and_values.py.
"""

import re

import mindspore
import pytest

import trainer
from tests.dropin.cases import all_cases

BOTH = {"mindspore": mindspore.Model, "ours": trainer.Model}
CASES = all_cases()


def outcome(function, kind, folder, capsys):
    folder.mkdir()
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
    return function(kind, folder, *([capsys] if "capsys" in wanted else []))


@pytest.mark.parametrize("name", CASES)
def test_as_mindspores_own(name, tmp_path, capsys):
    function, differs = CASES[name]
    theirs, ours = (outcome(function, BOTH[whose], tmp_path / whose, capsys) for whose in BOTH)
    if differs:
        assert ours != theirs, "the same by now: take the difference out of the table"
        return
    compare(ours, theirs)


def compare(ours, theirs, in_metrics=True):
    """What MindSpore gives is given; hooks may see more than it shows them.

    Figures of metrics may differ in the eighth digit: ours add up in double precision.
    """
    if in_metrics and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-6)
    elif in_metrics and isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            compare(ours[key], theirs[key], not key.endswith(("weight", "bias")))
    elif isinstance(theirs, str) and "metrics: " in theirs and len(_numbers(theirs)) > 1:
        compare(*([_numbers(text) for text in (ours, theirs)]))
    elif _is_hook(theirs):
        assert ours[0] == theirs[0]
        if "cur_epoch_num" not in theirs[1]:  # before the first epoch, and in an evaluation alone
            assert "cur_epoch_num" not in ours[1]
        for key, value in theirs[1].items():
            compare(ours[1].get(key), value, in_metrics=key in ("metrics", "eval_results"))
    elif isinstance(theirs, tuple | list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other, in_metrics)
    else:
        assert ours == theirs


def _numbers(text):
    return [float(part) if part[:1].isdigit() else part for part in re.split(r"(\d+\.\d+)", text)]


def _is_hook(value):
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)

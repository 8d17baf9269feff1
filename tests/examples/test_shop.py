"""The demonstration's parts: its AUC is scikit-learn's, its rows are those of the declaration, its pictures are SVG."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[2]))  # examples are not installed

from examples.shop import picture, rows
from examples.shop.terminal import draw_terminal

pytestmark = [pytest.mark.process, pytest.mark.server]


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 20, 500) / 20, (rng.random(500) < 0.4).astype(np.float32)
    assert abs(picture.auc(scores, labels) - roc_auc_score(labels, scores)) < 1e-12
    ends, values = picture.moving_auc(scores, labels, 200)
    assert values[0] == picture.auc(scores[:200], labels[:200])
    assert ends[0] == 200


def test_a_visit_knows_what_its_visitor_liked_before_and_nothing_later():
    table = rows.part(rows.visits(), slice(5000, 5400))
    inputs = rows.features().transform({name: table[name] for name in rows.COLUMNS})
    assert set(inputs) == {"ids", "genres", "liked"}
    everything = rows.visits()
    when = {
        (user, item): time
        for user, item, time in zip(everything["user"], everything["item"], everything["timestamp"], strict=True)
    }
    for user, liked, time in zip(table["user"], table["liked"], table["timestamp"], strict=True):
        assert all(when[user, item] < time for item in liked)
    assert all(0 < rows.delay(f"view-{number}") < rows.WITHIN for number in range(100))


def test_pictures_are_svg(tmp_path):
    rng = np.random.default_rng(0)
    times, labels = 8.9e8 + np.arange(600.0) * 600, (rng.random(600) < 0.5).astype(np.float32)
    versions = np.repeat([1, 2, 3], 200)
    picture.draw(tmp_path / "auc.svg", times, labels, rng.random(600), labels, versions, [(300, "rank killed")])
    draw_terminal(tmp_path / "terminal.svg", "make demo", [(0.5, "a < b"), (12.0, "done")])
    for name in ("auc.svg", "terminal.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
    assert "prefers-color-scheme: dark" in (tmp_path / "auc.svg").read_text()
    assert "a &lt; b" in (tmp_path / "terminal.svg").read_text()

"""Hashes and first values depend on the id and the seed, and on nothing else."""

from decimal import Decimal

import numpy as np
import pytest

from trainer.embedding.tables.hashing import hash_strings, initial_rows, mix64, stable_seed, to_ids, uniform64
from trainer.errors import DataError


def test_a_string_has_one_id_whatever_array_carries_it():
    words = ["user_1", "ü", "", "a much longer word than the others"]
    wide, narrow = np.array(words, "U80"), np.array(words)
    utf8 = np.array([word.encode() for word in words])
    mixed = np.array(["user_1", "ü".encode(), "", words[3]], object)
    expected = hash_strings(narrow).tolist()
    assert len(set(expected)) == 4
    for column in (wide, utf8, mixed, np.array(words, object)):
        assert to_ids(column).tolist() == expected
    assert to_ids(narrow.reshape(2, 2)).shape == (2, 2)


def test_strings_do_not_collide():
    words = np.array([f"item:{i}" for i in range(100_000)] + [f"{i}:item" for i in range(100_000)])
    assert len(np.unique(hash_strings(words))) == len(words)


def test_mixing_is_a_bijection_that_leaves_its_input():
    ids = np.arange(1_000, dtype=np.int64)
    assert len(np.unique(mix64(ids))) == 1_000
    assert (ids == np.arange(1_000)).all()


def test_floats_are_no_ids():
    with pytest.raises(DataError, match="'user' must hold integer or string ids; received dtype float32"):
        to_ids(np.zeros(3, np.float32), "'user'")


def test_initial_rows_depend_on_id_and_seed_only():
    ids = np.array([5, -7, 2**60])
    rows = initial_rows(ids, 7, stable_seed(1, "user"))
    assert rows.dtype == np.float32
    assert np.array_equal(initial_rows(ids[::-1], 7, stable_seed(1, "user"))[::-1], rows)
    assert not np.array_equal(initial_rows(ids, 7, stable_seed(1, "item")), rows)
    assert not np.array_equal(initial_rows(ids, 7, stable_seed(2, "user")), rows)


def test_initial_rows_have_the_distribution_asked_for():
    ids = np.arange(20_000)
    normal = initial_rows(ids, 8, 3, "normal", 0.5)
    assert abs(normal.mean()) < 0.01
    assert normal.std() == pytest.approx(0.5, rel=0.02)
    assert np.abs(np.corrcoef(normal, rowvar=False) - np.eye(8)).max() < 0.03
    assert (np.abs(normal) < 0.5).mean() == pytest.approx(0.6827, abs=0.01)
    uniform = initial_rows(ids, 8, 3, "uniform", 0.5)
    assert np.abs(uniform).max() <= 0.5
    assert uniform.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.02)
    assert not initial_rows(ids[:3], 8, 3, "zeros").any()
    assert uniform64(ids, 9).mean() == pytest.approx(0.5, abs=0.01)


def test_bytes_that_are_no_text_are_ids_too():
    words = [b"\xff\xfe", b"\xff", b"a", "\u00fc".encode()]
    ids = to_ids(np.array(words))
    assert len(set(ids.tolist())) == 4
    assert ids.tolist() == to_ids(np.array(words, object)).tolist()
    assert ids[2:].tolist() == to_ids(np.array(["a", "\u00fc"])).tolist()


def test_an_integer_has_one_id_whatever_array_carries_it():
    numbers = [5, -7, 2**63 - 1, -(2**63), 0, 1]
    expected = np.array(numbers).tolist()
    for column in (np.array(numbers, object), np.array([np.int64(number) for number in numbers], object)):
        assert to_ids(column).tolist() == expected
        assert to_ids(column.reshape(2, 3)).shape == (2, 3)
    large = [2**63, 2**64 - 1]
    assert to_ids(np.array(large, object)).tolist() == to_ids(np.array(large, np.uint64)).tolist()
    assert to_ids(np.array([True, False], object)).tolist() == [1, 0]
    words = to_ids(np.array(["5", "user", str(2**64)])).tolist()
    assert to_ids(np.array([5, "5", "user", 2**64], object)).tolist() == [5, *words]
    assert to_ids(np.array([Decimal(5), Decimal("-7.0")], object)).tolist() == [5, -7]
    assert to_ids(np.empty(0, object)).tolist() == []


@pytest.mark.parametrize("value", [None, float("nan"), 5.0, np.float32(5), Decimal("0.5"), Decimal("Infinity")])
def test_objects_that_are_neither_integers_nor_text_are_no_ids(value):
    with pytest.raises(DataError, match="'user' must hold integer or string ids; received "):
        to_ids(np.array([["a", value]], object), "'user'")

"""What somebody rated before, as columns, and the network that reads it."""

import numpy as np

from examples.last_films import last_films
from examples.movielens import load


def test_the_films_are_those_of_the_same_person_in_earlier_seconds_newest_last():
    columns = load()
    found = last_films(columns, 6)
    assert found["films"].shape == found["stars"].shape == (100_000, 6)
    for row in (0, 20_000, 50_000, 99_999):
        same = columns["user"] == columns["user"][row]
        before = np.flatnonzero(same & (columns["timestamp"] < columns["timestamp"][row]))[-6:]
        missing = 6 - len(before)
        assert found["films"][row].tolist() == [0] * missing + columns["item"][before].tolist()
        assert found["stars"][row].tolist() == [0] * missing + columns["rating"][before].astype(int).tolist()


def test_ratings_of_one_page_do_not_know_each_other():
    columns = {"user": [1, 2, 1, 1], "item": [5, 6, 7, 8], "rating": [4.0, 3.0, 2.0, 1.0], "timestamp": [9, 9, 9, 10]}
    found = last_films({name: np.array(values) for name, values in columns.items()}, 3)
    assert found["films"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 5, 7]]
    assert found["stars"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 4, 2]]

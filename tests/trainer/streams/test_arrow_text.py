"""Text of Arrow columns becomes the same NumPy text, whatever way it is read."""

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow")

from trainer.streams.formats import arrow  # noqa: E402

LONG = "x" * 100


@pytest.mark.parametrize(
    "words",
    [
        ["0a1b", "ffff", "0000"],
        ["a", "", "abc", "ab"],
        ["", ""],
        ["ä", "ab", "日本"],
        ["a\0b", "c"],
        [LONG, "short"],
        [],
    ],
)
@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_text_is_that_of_the_words(words, kind):
    array = pyarrow.array(words, kind)
    assert arrow.text(array).tolist() == words
    assert arrow.flat(array, ()).tolist() == words
    assert arrow.text(array.slice(1, 2)).tolist() == words[1:3]


def test_a_slice_reads_its_own_words():
    words = [f"{number:x}" for number in range(5_000)]
    found = arrow.text(pyarrow.array(words).slice(300, 4_000))
    assert found.tolist() == words[300:4_300]
    assert found.dtype == np.dtype("U4")

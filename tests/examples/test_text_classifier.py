"""A text classifier on given word vectors, fed with words as they are."""

import numpy as np
import pytest
from mindspore import Tensor

from examples.text_classifier import LENGTH, TOPICS, TextClassifier, docstrings, train, word_vectors
from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError


@pytest.fixture(scope="module")
def texts():
    return docstrings("train"), docstrings("test")


@pytest.mark.long
def test_the_parts_are_real_texts_and_share_none(texts):
    known, held_out = texts
    for part, least in ((known, 1000), (held_out, 300)):
        assert part["words"].shape == (len(part["label"]), LENGTH)
        assert len(part["label"]) >= least
        assert set(part["label"]) == set(range(len(TOPICS)))
        assert not set(TOPICS) & set(part["words"].ravel())  # names of the classes would be the answer
    both = {tuple(row) for row in known["words"]} & {tuple(row) for row in held_out["words"]}
    assert len(both) < 0.05 * len(held_out["label"])  # a few docstrings stand in several files


@pytest.mark.long
def test_vectors_of_related_words_point_the_same_way(texts):
    vectors = word_vectors(texts[0]["words"])
    unit = {word: vector / np.linalg.norm(vector) for word, vector in vectors.items()}
    assert unit["rows"] @ unit["columns"] > unit["rows"] @ unit["poles"] + 0.2
    assert unit["eigenvalues"] @ unit["eigenvectors"] > unit["eigenvalues"] @ unit["knots"] + 0.2

    network = TextClassifier(vectors, trainable=False)
    words = np.array([["rows", "columns", ""], ["rows", "a word nobody ever wrote", ""]])
    read = network.words(Tensor(to_ids(words))).asnumpy()
    np.testing.assert_allclose(read[0], (vectors["rows"] + vectors["columns"]) / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(read[1], vectors["rows"] / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_it_tells_the_topics_of_files_it_has_never_seen():
    accuracy = train(epochs=4)
    assert accuracy["majority"] < 0.5
    assert accuracy["classifier"] > accuracy["majority"] + 0.2


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match="received 'tests'; did you mean 'test'"):
        docstrings("tests")

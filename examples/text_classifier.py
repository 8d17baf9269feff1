"""A text classifier on word vectors that finds the part of SciPy a text is about.

    python -m examples.text_classifier

The texts are the docstrings of SciPy, which is installed with scikit-learn, so nothing is downloaded. The class is the
subpackage of a docstring, and whole files are held out. Word vectors are computed from the training texts: positive
pointwise mutual information of nearby words, reduced by a singular value decomposition (O. Levy and Y. Goldberg,
"Neural Word Embedding as Implicit Matrix Factorization", 2014). They are passed to `EmbeddingBag.from_pretrained`, like
any other pretrained vectors. The words themselves are passed as strings.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn, ops

from trainer import Trainer
from trainer.embedding import EmbeddingBag
from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError, did_you_mean

TOPICS = ("interpolate", "linalg", "optimize", "signal", "sparse", "stats")
SPLITS = ("train", "test")
LENGTH = 80  # number of words of a text that are read
NO_WORD = ""
_HIDDEN = {"scipy", *TOPICS}  # words removed from the texts, because they would give the class away


def docstrings(split: str = "train", hold_out: float = 0.25) -> dict[str, np.ndarray]:
    """Return the texts of one part; the split is fixed for each version of SciPy.

    Args:
        split: "train" or "test".
        hold_out: share of the files that form "test".

    Returns:
        words: strings [rows, 80], lower case, padded with empty strings; label: int32 [rows], indices into `TOPICS`.

    Raises:
        ConfigurationError: an invalid argument, or SciPy is missing.
    """
    if split not in SPLITS:
        raise ConfigurationError(f"split takes 'train' or 'test'; received {split!r}{did_you_mean(split, SPLITS)}")
    if not 0 < hold_out < 1:
        raise ConfigurationError(f"hold_out takes a number between 0 and 1; received {hold_out!r}")
    found = importlib.util.find_spec("scipy")
    if found is None or found.origin is None:
        raise ConfigurationError("the texts come with scikit-learn: pip install 'mindspore-trainer[examples]'")
    rows: list[list[str]] = []
    labels: list[int] = []
    rng = np.random.default_rng(0)
    for label, topic in enumerate(TOPICS):
        files = sorted((Path(found.origin).parent / topic).rglob("*.py"))
        files = [file for file in files if "tests" not in file.parts]
        held_out = rng.random(len(files)) < hold_out
        chosen = [file for file, held in zip(files, held_out, strict=True) if held == (split == "test")]
        texts = dict.fromkeys(text for file in chosen for text in _texts(file))  # without duplicates
        rows += [list(text) for text in texts]
        labels += [label] * len(texts)
    words = np.array([row[:LENGTH] + [NO_WORD] * (LENGTH - len(row)) for row in rows])
    return {"words": words, "label": np.array(labels, np.int32)}


def _texts(file: Path) -> list[tuple[str, ...]]:
    """Return the words of every docstring of a file, without code examples.

    The file is parsed, not imported.
    """
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, kinds)]
    found = []
    for node in nodes:
        lines = (ast.get_docstring(node) or "").splitlines()
        prose = " ".join(line for line in lines if not line.lstrip().startswith((">>>", "...")))
        words = [word for word in re.findall(r"[a-z]{2,}", prose.lower()) if word not in _HIDDEN]
        if len(words) >= 15:
            found.append(tuple(words))
    return found


def word_vectors(words: np.ndarray, dim: int = 32, least: int = 3, window: int = 5) -> dict[str, np.ndarray]:
    """Return a vector for every word that occurs at least `least` times.

    Args:
        words: strings [rows, n].
        dim: length of the vectors.
        least: minimum number of occurrences.
        window: maximum distance of two words that count as nearby.

    Returns:
        Word -> vector, float32 [dim].
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    counts = Counter(words.ravel().tolist())
    vocabulary = sorted(word for word, count in counts.items() if count >= least and word != NO_WORD)
    number = {word: place for place, word in enumerate(vocabulary)}
    places = np.array([[number.get(word, -1) for word in row] for row in words.tolist()])
    one, other = [], []
    for distance in range(1, window + 1):
        left, right = places[:, :-distance].ravel(), places[:, distance:].ravel()
        both = (left >= 0) & (right >= 0)
        one += [left[both], right[both]]
        other += [right[both], left[both]]
    one, other = np.concatenate(one), np.concatenate(other)
    size = len(vocabulary)
    near = csr_matrix((np.ones(len(one)), (one, other)), shape=(size, size)).tocoo()
    totals = np.bincount(one, minlength=size)
    information = np.log(near.data * len(one) / (totals[near.row] * totals[near.col]))
    kept = information > 0
    matrix = csr_matrix((information[kept], (near.row[kept], near.col[kept])), shape=(size, size))
    left, strength, _ = svds(matrix, k=dim, v0=np.ones(size))
    vectors = (left * np.sqrt(strength)).astype(np.float32)
    return dict(zip(vocabulary, vectors, strict=True))


class TextClassifier(nn.Cell):
    """The mean of the word vectors, followed by a perceptron.

    Args:
        vectors: pretrained vectors by word, or None to learn vectors from scratch.
        trainable: whether to train the pretrained vectors further; words without a vector then get one too.
        classes: number of classes.
        hidden: width of the hidden layer.
        dim: length of the vectors, if `vectors` is None.

    Inputs:
        words: strings [B, n], padded with empty strings.

    Outputs:
        Logits, float32 [B, classes].
    """

    def __init__(
        self,
        vectors: Mapping[str, np.ndarray] | None = None,
        trainable: bool = True,
        classes: int = len(TOPICS),
        hidden: int = 32,
        dim: int = 32,
    ) -> None:
        super().__init__()
        padding = int(to_ids(np.array([NO_WORD]))[0])
        if vectors is None:
            self.words = EmbeddingBag(dim, combiner="mean", padding=padding)
        else:
            known: dict[str, Any] = {"vectors": np.stack(list(vectors.values())), "ids": list(vectors)}
            self.words = EmbeddingBag.from_pretrained(**known, trainable=trainable, combiner="mean", padding=padding)
        self.hidden = nn.Dense(self.words.dim, hidden)
        self.top = nn.Dense(hidden, classes)

    def construct(self, words):
        """Return the logits; see the class for shapes."""
        return self.top(ops.relu(self.hidden(self.words(words))))


def train(epochs: int = 12, trainable: bool = True) -> dict[str, float]:
    """Compute vectors, train a classifier, and return accuracies on held-out texts.

    Returns:
        {"classifier": ..., "majority": ...}; "majority" always predicts the most frequent class.
    """
    known, held_out = docstrings("train"), docstrings("test")
    network = TextClassifier(word_vectors(known["words"]), trainable=trainable)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=5e-3)
    trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer, {"accuracy"}, seed=1)
    trainer.fit(known, epochs, callbacks=[], batch_size=64)
    most = np.bincount(known["label"]).argmax()
    accuracy = trainer.evaluate(held_out, batch_size=200)["accuracy"]
    return {"classifier": accuracy, "majority": float(np.mean(held_out["label"] == most))}


def main(argv: Sequence[str] | None = None) -> int:
    """Train and print; return the exit code."""
    try:
        for name, accuracy in train().items():
            print(f"{name:12} {accuracy:.3f}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

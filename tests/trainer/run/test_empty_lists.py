"""Batches whose lists are all empty (cold users) train, are evaluated, predicted and served as any others."""

import json

import mindspore
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding, EmbeddingBag
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel
from trainer.streams import Column, FileStream, IterableStream, ReplayStream, Schema

IDS = [[], [], [5, 1], [], [2, 5, 1], [], [], [7]]
WORDS = [[f"w{i}" for i in row] for row in IDS]
LABELS = [[float(len(row) > 1)] for row in IDS]


class OfTable(nn.Cell):
    """The sum of a history by its mask, from a table of ours or from an embedding of MindSpore's."""

    def __init__(self, mode="sparse"):
        super().__init__()
        self.films = Embedding(3, mode="sparse") if mode == "sparse" else nn.Embedding(20, 3)
        self.head = nn.Dense(3, 1, weight_init=mindspore.Tensor(np.ones((1, 3), np.float32)), bias_init="zeros")

    def construct(self, history, history_mask):
        return self.head((self.films(history) * history_mask.expand_dims(-1)).sum(1))


class OfMindSpore(OfTable):
    def __init__(self):
        super().__init__("dense")


class OfBag(nn.Cell):
    def __init__(self):
        super().__init__()
        self.films = EmbeddingBag(3)
        self.head = nn.Dense(3, 1, weight_init=mindspore.Tensor(np.ones((1, 3), np.float32)), bias_init="zeros")

    def construct(self, history, history_offsets):
        return self.head(self.films(history, None, history_offsets))


class OfNumbers(nn.Cell):
    """No ids: the lists hold numbers."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(1, 1, weight_init="ones", bias_init="zeros")

    def construct(self, history, history_mask):
        return self.head((history * history_mask).sum(1, keepdims=True))


def trained(network, stream, **options):
    mindspore.set_seed(3)
    network = network()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.3))
    trainer.online_train(stream, options.pop("callbacks", []), **options)
    assert trainer.state.progress.samples_seen == len(IDS)
    return trainer


def written(folder, kind, rows):
    path = folder / f"part.{kind}"
    records = [{"history": row, "label": label} for row, label in zip(rows, LABELS, strict=True)]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "csv":
        path.write_text(
            "".join(f"{'|'.join(map(str, row))},{label[0]}\n" for row, label in zip(rows, LABELS, strict=True))
        )
    else:
        pyarrow.parquet.write_table(pyarrow.table({"history": rows, "label": LABELS}), path, row_group_size=1)
    schema = Schema({"history": Column("int64", (None,)), "label": Column("float32", (1,))}, label="label")
    options = {"names": ["history", "label"], "list_delimiter": "|"} if kind == "csv" else {}
    return FileStream(folder, schema, end="at_last", **options)


BATCHES = [{"history": IDS[i : i + 2], "label": np.array(LABELS[i : i + 2], np.float32)} for i in range(0, len(IDS), 2)]
ROWS = [{"history": row, "label": label} for row, label in zip(IDS, LABELS, strict=True)]
SOURCES = {
    **{kind: lambda folder, kind=kind: written(folder, kind, IDS) for kind in ("jsonl", "csv", "parquet")},
    "replay": lambda _: ReplayStream({"history": IDS, "label": LABELS}),
    "arrow replay": lambda _: ReplayStream({"history": pyarrow.array(IDS), "label": LABELS}),
    "rows": lambda _: IterableStream(ROWS, rows="single"),
    "batches": lambda _: BATCHES,
}


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_cold_users_in_single_rows_and_first(source, tmp_path):
    """One row at a time, in an order that begins with empty lists, trains as lists of a declared dtype do."""
    size = 2 if source == "batches" else 1
    stream = ReplayStream({"history": Ragged.of(IDS), "label": np.array(LABELS, np.float32)})
    expected = trained(OfTable, stream, batch_size=size)
    trainer = trained(OfTable, SOURCES[source](tmp_path), batch_size=size)
    shown = {"history": IDS}
    assert trainer.predict(shown, batch_size=8) == pytest.approx(expected.predict(shown, batch_size=8), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("network", [OfTable, OfMindSpore, OfBag, OfNumbers])
def test_every_verb_takes_a_batch_of_empty_lists_first(network):
    network = network()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    empty = {"history": [[], []], "label": np.zeros((2, 1), np.float32)}
    assert trainer.predict({"history": [[]]}).shape == (1, 1)
    trainer.fit(empty, callbacks=[], batch_size=2)
    assert np.isfinite(trainer.evaluate(empty)["loss"])
    numbers = isinstance(network, OfNumbers)
    lists = [[float(i) for i in row] for row in IDS] if numbers else IDS
    labels = np.array(LABELS, np.float32)
    batches = [{"history": lists[i : i + 2], "label": labels[i : i + 2]} for i in range(0, len(IDS), 2)]
    trainer.fit(batches, callbacks=[])
    trainer.fit({"history": Ragged.of(lists), "label": labels}, callbacks=[], batch_size=1, shuffle=False)
    after = trainer.predict({"history": lists})
    assert trainer.predict({"history": [[]]}) == pytest.approx(after[:1], rel=1e-6)
    assert trainer.predict({"history": Ragged.of([[], []])}) == pytest.approx(after[:2], rel=1e-6)


@pytest.mark.long
def test_a_text_history_may_begin_with_empty_lists_and_is_served(tmp_path):
    table = {"history": Ragged.of(WORDS), "label": np.array(LABELS, np.float32)}
    expected = trained(OfTable, ReplayStream(table), batch_size=1)
    rows = [
        {"history": Ragged.of([row], max_length=4), "label": [label]} for row, label in zip(WORDS, LABELS, strict=True)
    ]
    trainer = trained(OfTable, rows, batch_size=1, callbacks=Publish(tmp_path, every=1e9, batch=4))
    after = trainer.predict({"history": WORDS}, batch_size=8)
    assert after == pytest.approx(expected.predict({"history": WORDS}, batch_size=8), rel=1e-6)
    with ServedModel(tmp_path, follow=False) as model:
        assert model.predict({"history": [[]]}) == pytest.approx(after[:1], rel=1e-5)
        assert model.predict({"history": WORDS}) == pytest.approx(after, rel=1e-5)

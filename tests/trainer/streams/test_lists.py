"""Lists of any length in streams: every source gives the same rows, and networks train on them."""

import json

import mindspore
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from mindspore import nn

from tests.trainer.data.test_ragged import BagOfHistory, MeanOfHistory, as_lists, histories
from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.errors import ConfigurationError
from trainer.streams import Column, FileStream, IterableStream, ReplayStream, Schema

LISTS = [[5, 1, 2], [], [3], [4, 4], [7, 8, 9, 1, 2], [6]]
LABELS = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
SCHEMA = Schema({"history": Column("int32", (None,)), "label": "float32"}, label="label")


def drained(stream, rows=4):
    """Read everything, a few rows at a time."""
    found = []
    while (batch := stream.poll(rows, 0.1)) is not None:
        assert batch.rows <= rows
        found += as_lists(Ragged.of(batch.columns["history"]))
    return found


def written(folder, kind):
    """Write the rows as a file of some kind and return the stream of it."""
    path = folder / f"part.{kind}"
    rows = [{"history": row, "label": label} for row, label in zip(LISTS, LABELS, strict=True)]
    table = pyarrow.table({"history": LISTS, "label": LABELS})
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        path.write_text("".join(f"{'|'.join(map(str, row['history']))},{row['label']}\n" for row in rows))
    else:
        pyarrow.parquet.write_table(table, path)
    options = {"names": ["history", "label"], "list_delimiter": "|"} if kind == "csv" else {}
    return FileStream(folder, SCHEMA, end="at_last", **options)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_files(kind, tmp_path):
    with_stream = written(tmp_path, kind)
    assert drained(with_stream) == LISTS
    with_stream.close()


@pytest.mark.parametrize(
    "source",
    [
        lambda: ReplayStream({"history": LISTS, "label": LABELS}),
        lambda: ReplayStream({"history": pyarrow.array(LISTS), "label": LABELS}),
        lambda: IterableStream([{"history": LISTS[i : i + 2], "label": LABELS[i : i + 2]} for i in (0, 2, 4)]),
        lambda: IterableStream([{"history": h, "label": y} for h, y in zip(LISTS, LABELS, strict=True)]),
        lambda: IterableStream([(np.array(h), y) for h, y in zip(LISTS, LABELS, strict=True)], ["history", "label"]),
    ],
    ids=["replay", "replay of arrow", "batches", "rows", "tuples"],
)
def test_python(source):
    assert drained(source()) == LISTS


def test_a_position_within_a_file_is_reached_again(tmp_path):
    stream = written(tmp_path, "jsonl")
    stream.poll(4)
    again = FileStream(tmp_path, SCHEMA, end="at_last")
    again.seek(stream.position())
    assert drained(again) == LISTS[4:]


def test_only_the_rows_at_fault_are_set_aside(tmp_path):
    bad = [[1, "a"], 3, None, [1.5], [[1]], [True]]
    lines = [json.dumps({"history": row, "label": 1.0}) for row in [[1], *bad, [2, 2]]]
    (tmp_path / "part.jsonl").write_text("\n".join(lines) + "\n")
    stream = FileStream(tmp_path, SCHEMA, end="at_last", dead_letter=tmp_path / "bad.json")
    assert drained(stream, 100) == [[1], [2, 2]]
    reasons = (tmp_path / "bad.json").read_text()
    assert "takes lists of int32; received int: 3" in reasons
    assert "is missing" in reasons


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Column("int32", (2, None)), "the first None for lists of any length"),
        (lambda: Column("int32", (3,), max_length=2), "need lists of any length"),
        (lambda: Column("int32", (None,), per_octave=3), "per_octave: takes 1, 2, 4, 8 or 16"),
        (lambda: Schema({"a": Column("int32", (None,))}, key="a"), "key takes a column of single values"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def rows_of_json(tmp_path):
    rows, labels = histories()
    records = [{"label": [y], "more": 1, "history": row} for row, (y,) in zip(rows, labels.tolist(), strict=True)]
    (tmp_path / "part.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    schema = Schema({"label": Column("float32", (1,)), "history": Column("int32", (None,))}, label="label")
    return FileStream(tmp_path, schema, end="at_last")


@pytest.mark.long
@pytest.mark.parametrize(("network", "sink"), [(MeanOfHistory, 1), (BagOfHistory, 2)])
def test_online_training_is_that_of_fit_in_the_same_order(network, sink, tmp_path):
    rows, labels = histories()
    trained = []
    for online in (False, True):
        net = network()
        for parameter in net.get_parameters():
            parameter.set_data(
                mindspore.Tensor(np.cos(np.arange(parameter.size, dtype=np.float32)).reshape(parameter.shape))
            )
        trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2))
        if online:
            trainer.online_train(rows_of_json(tmp_path), [], batch_size=8, sink_size=sink)
            assert 0 < trainer.state.window["window_auc"] < 1
        else:
            trainer.fit({"history": rows, "y": labels}, callbacks=[], batch_size=8, shuffle=False)
        trained.append(net.head.weight.asnumpy())
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-5)

"""The fuzzer in its short form: everything that is read, damaged in some hundred ways; and proof that it can fail."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import fuzz  # noqa: E402

SECONDS = float(os.environ.get("TRAINER_FUZZ_SECONDS", "7"))


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_damage_is_named_or_without_effect(kind, tmp_path):
    (found,) = fuzz.run_all([kind], SECONDS / len(fuzz.KINDS), 1, tmp_path)
    assert found.cases > 1
    assert not found.failures, "\n".join(f"case {number}: {what}" for number, what in found.failures)


def test_a_case_can_be_repeated_alone(tmp_path):
    texts = []
    for number in range(2):
        made = fuzz.configurations(tmp_path)
        scratch = tmp_path / str(number)
        scratch.mkdir()
        with pytest.raises(fuzz.TrainerError) as caught:
            made(random.Random("1 configurations 3"), scratch)
        texts.append(str(caught.value).replace(str(scratch), ""))
    assert texts[0] == texts[1]


def test_a_row_that_is_lost_a_value_that_is_changed_and_an_exception_of_python_are_failures(tmp_path, monkeypatch):
    from trainer.streams import files
    from trainer.streams.schema import Column

    def lossy(batch):
        return batch.split(1)[1] if batch is not None and batch.rows > 3 else batch

    def wrong(column, *rest):
        return convert(column, *rest)[0] + 1, None

    convert, poll = Column.convert, files.FileStream.poll
    for name, replace in (
        ("lost", lambda m: m.setattr(files.FileStream, "poll", lambda *given: lossy(poll(*given)))),
        ("changed", lambda m: m.setattr(Column, "convert", wrong)),
        ("raised", lambda m: m.setattr(files, "kind_of", lambda name, format: 1 / 0)),
    ):
        with monkeypatch.context() as patched:
            replace(patched)
            (found,) = fuzz.run_all(["segments"], 0.5, 1, tmp_path / name)
        assert found.failures, name

"""The fuzzer in its short form: everything that is read, damaged in some hundred ways; and proof that it can fail."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import fuzz, fuzz_parsers  # noqa: E402

SECONDS = float(os.environ.get("TRAINER_FUZZ_SECONDS", "7"))


@pytest.mark.long(but=["parsers", "snapshots"])
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
    from trainer.streams.formats.schema import Column
    from trainer.streams.sources import files

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


def test_what_has_ended_a_process_once_is_read_or_refused():
    child = fuzz_parsers.Child()
    try:
        assert {child.attempt(-1 - number) for number in range(len(fuzz_parsers.CRASHED))} <= {"read", "refused"}
    finally:
        child.end()


def test_a_parser_that_ends_its_process_is_a_failure_by_the_name_of_the_signal():
    crash = "import os, signal; input(); os.kill(os.getpid(), signal.SIGSEGV)"
    assert fuzz_parsers.Child([sys.executable, "-c", crash]).attempt(1) == "the process was ended by SIGSEGV"

"""What one of two processes refuses or fails at ends the call on both, with the same error."""

import pytest

from tests.trainer.distributed import refusal_program

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = refusal_program


@pytest.mark.parametrize("verb", ["evaluate", "predict", "fit"])
def test_a_refused_id_is_told_with_rank_column_and_id_on_every_process(two, verb):
    text, rank = two[1][verb]
    assert rank == 1
    assert text.startswith("rank 1: column 'city': dense table 'cities' takes ids from 0 to 49; received 70")
    assert two[0][verb] == two[1][verb]


def test_the_processes_go_on_together_after_a_refusal(two):
    assert [found["goes on"] for found in two] == [True, True]
    assert [found["trains again"] for found in two] == [True, True]


def test_a_folder_that_rank_0_cannot_write_is_told_on_every_process(two):
    assert two[0]["save"] == two[1]["save"]
    assert "the path is a file where a folder is needed" in two[0]["save"]


def test_a_process_whose_batches_end_before_those_of_the_others_is_named_on_all(two):
    for found in two:
        assert found["fewer batches"] == ["rank 1: its data ends before that of the others", 1]


@pytest.mark.parametrize(("case", "column"), [("no tables", "x"), ("before the exchange", "user")])
def test_a_batch_that_is_refused_before_its_ids_are_exchanged_ends_all_evaluations(two, case, column):
    assert two[0][case] == two[1][case]
    assert two[0][case][1] == 1
    assert two[0][case][0].startswith("rank 1: ")
    assert column in two[0][case][0]


def test_an_exchange_that_fails_inside_a_graph_call_keeps_its_type_and_names_the_rank(two):
    assert two[1]["cut off"] == ["TrainerError", "the cable of rank 1 is cut"]
    kind, text = two[0]["cut off"]
    assert kind == "TrainerError"
    assert text.startswith("rank 1 has ended")

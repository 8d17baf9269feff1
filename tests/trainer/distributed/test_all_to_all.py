"""Bytes between all pairs of processes; threads stand for processes, each with its own connections."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.trainer.distributed.threads import Thread, connected, group_of
from trainer.distributed.all_to_all import Channel
from trainer.distributed.group import SINGLE
from trainer.errors import TrainerError

SIZE = 4


@pytest.fixture
def members():
    with connected(SIZE) as (members, run):
        yield [member.connections for member in members], lambda function: run(lambda member: function(member.rank))


@pytest.mark.parametrize("length", [1, 1000, 3_000_000])
def test_every_process_receives_the_parts_meant_for_it_in_the_order_of_ranks(members, length):
    """Of other lengths for each pair, none among them; several exchanges one after another."""
    members, run = members

    def one(rank):
        for turn in range(3):
            parts = [np.full(length * rank * to, 10 * rank + to + 100 * (turn % 2), np.uint8) for to in range(SIZE)]
            received = members[rank].exchange(parts)
            for source, part in enumerate(received):
                content = np.frombuffer(part, np.uint8)
                assert content.size == length * rank * source
                assert content.flags.writeable, "kernels take no other arrays"
                assert (content == 10 * source + rank + 100 * (turn % 2)).all()

    run(one)
    sent = [length * rank * (6 - rank) + 64 * (SIZE - 1) for rank in range(SIZE)]
    assert [member.sent.bytes for member in members] == [3 * count for count in sent]
    assert all(member.sent.messages == 3 * (SIZE - 1) for member in members)


def test_a_message_of_several_buffers_arrives_as_one(members):
    members, run = members

    def one(rank):
        pieces = [np.full(number % 3, rank + number, np.uint8) for number in range(1500)]
        received = members[rank].exchange([pieces] * SIZE)
        assert received[rank] is pieces
        for source, part in enumerate(received):
            if source != rank:
                expected = [(source + number) % 256 for number in range(1500) for _ in range(number % 3)]
                assert np.frombuffer(part, np.uint8).tolist() == expected

    run(one)


def exchange_often(member):
    for _ in range(100):
        member.exchange([b"x" * 1_000_000] * SIZE)


def test_a_process_that_is_gone_is_named(members):
    members, run = members

    def one(rank):
        if rank == 2:
            members[2].close()
            return ""
        with pytest.raises(TrainerError) as error:
            exchange_often(members[rank])
        members[rank].close()  # as its end does
        return str(error.value)

    messages = run(one)
    assert any("rank 2 has ended" in message for message in messages)
    assert all("has ended" in message for rank, message in enumerate(messages) if rank != 2)


def test_a_process_that_does_not_come_is_named_at_the_deadline(members):
    members, run = members
    for member in members:
        member.deadline = 0.3

    def one(rank):
        if rank == 3:
            return
        with pytest.raises(TrainerError, match=rf"rank {rank} has waited 0.3 s for ranks \[3\]"):
            members[rank].exchange([b"x"] * SIZE)

    run(one)


@pytest.mark.long
def test_a_process_that_comes_late_is_waited_for():
    """It may compile for minutes, while what the others send fills the buffers of its connections."""

    def one(member):
        member.connect()
        if member.rank == 3:
            time.sleep(4)
        try:
            return sum(map(len, member.all_to_all([b"x" * 5_000_000] * SIZE)))
        finally:
            member.wait()

    with group_of(SIZE) as (_, run):
        assert run(one) == [5_000_000 * SIZE] * SIZE


def test_an_interrupted_exchange_ends_at_once_and_the_others_keep_waiting(members):
    """They are stopped by their own training."""
    members, _ = members
    for member in members:
        member.deadline = 3600
    with ThreadPoolExecutor(SIZE) as pool:
        waiting = [pool.submit(member.exchange, [b"x"] * SIZE) for member in members[:3]]  # rank 3 does not come
        time.sleep(0.3)
        for rank, member in enumerate(members[:3]):
            assert not any(future.done() for future in waiting[rank:])
            member.interrupt()
            with pytest.raises(TrainerError, match=f"rank {rank} was interrupted"):
                waiting[rank].result(timeout=60)
            with pytest.raises(TrainerError, match="an earlier exchange has failed"):
                member.exchange([b"x"] * SIZE)


def test_a_channel_is_opened_again_after_an_interruption(monkeypatch):
    monkeypatch.setenv("MS_SCHED_HOST", "127.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "9")

    class Counting(Thread):
        def track(self, sent):
            self.sent = sent

    def one(member):
        channel, found = Channel(member), []
        with pytest.raises(TrainerError, match="has opened no connections"):
            channel.all_to_all([b"x"] * SIZE)
        for _ in range(2):
            assert not channel.is_open
            channel.open()
            assert channel.is_open
            found.append(channel.all_to_all([bytes([member.rank])] * SIZE))
            channel.interrupt()
            member.wait()
        return found, member.sent.messages

    with group_of(SIZE, Counting) as (_, run):
        for found, messages in run(one):
            assert [[part[0] for part in received] for received in found] == [[0, 1, 2, 3]] * 2
            assert messages == 2 * (SIZE - 1)


def test_strangers_at_the_port_are_sent_away():
    """Of three that connect first one leaves at once, one says something else and one says nothing."""
    strangers = []

    class Visited(Thread):
        def gather_json(self, value):
            if self.rank == 1 and isinstance(value, list):  # its address
                for word in (None, b"G" * 24, b""):
                    stranger = socket.create_connection(("127.0.0.1", value[1]))
                    strangers.append(stranger)
                    stranger.close() if word is None else stranger.sendall(word)
            return super().gather_json(value)

    with connected(SIZE, Visited) as (_, run):
        assert len(strangers) == 3
        parts = run(lambda member: member.all_to_all([bytes([member.rank])] * SIZE))
    assert all([part[0] for part in own] == [0, 1, 2, 3] for own in parts)
    for stranger in strangers:
        stranger.close()


def test_one_process_keeps_its_part():
    assert SINGLE.all_to_all([b"abc"]) == [b"abc"]


def test_processes_that_came_for_different_things_are_all_named(members):
    """Ranks 0 and 2 agree, but hear of the others before they go on."""
    members, run = members
    purposes = ["fit: gather", "evaluate: gather", "fit: gather", "predict: wait"]

    def one(rank):
        with pytest.raises(TrainerError) as error:
            members[rank].exchange([b"x" * 100_000] * SIZE, purpose=purposes[rank])
        return str(error.value)

    messages = run(one)
    assert len({*messages}) == 1
    assert "ranks [0, 2] are in fit: gather; ranks [1] are in evaluate: gather; ranks [3] are in" in messages[0]

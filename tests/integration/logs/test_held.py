"""What a control plane keeps of a log: by position, without end in neither bytes nor rows, every gap said."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runtime.protocol.tasks import LOG_KEEP_BYTES
from runtime.server.store.tables import task_logs, tasks, tokens
from tests.integration.postgres import Postgres
from tests.integration.server_tasks.conftest import Plane, any_plane, start_plane
from tests.integration.server_tasks.conftest import plane as served
from tests.integration.waiting import until

__all__ = ["any_plane", "served"]
LOGS = "/api/v1/tasks/t1/logs"


class Sender:
    """The node's side of one attempt's log."""

    def __init__(self, plane: Plane) -> None:
        self.node = plane.node()
        self.attempt, self._token = plane.running(self.node, "t1")

    def send(self, start: int, data: str, dropped: int = 0, **more: Any) -> tuple[int, Any]:
        chunk = {"attempt": self.attempt, "claim_token": self._token, "from": start, "data": data, "dropped": dropped}
        return self.node.call("POST", LOGS, {**chunk, "to": start + len(data.encode()), **more})


def test_a_gap_whose_size_nobody_knows_is_said_once(any_plane: Plane) -> None:
    sender = Sender(any_plane)
    assert sender.send(0, "rotated before\n", gap=True, mark="a")[0] == 204
    assert sender.send(25, "more\n", dropped=10, gap=True, mark="b")[0] == 204
    assert sender.send(30, "on\n", mark="c")[0] == 204
    log = any_plane.get(LOGS)
    assert log["data"] == (
        "[output is gone here: how much is not known]\nrotated before\n\n"
        "[output is gone here: 10 bytes or more]\nmore\non\n"
    )
    assert (log["from"], log["to"], log["dropped"]) == (0, 33, 10)
    assert any_plane.get(f"{LOGS}?from=30")["data"] == "on\n"


def test_a_refusal_for_the_offset_says_where_to_go_on(any_plane: Plane) -> None:
    sender = Sender(any_plane)
    assert sender.send(0, "one\n", mark="place one")[0] == 204
    status, refusal = sender.send(0, "again, by an agent that knows nothing\n", gap=True)
    assert (status, refusal["code"]) == (409, "log_offset")
    assert (refusal["held_end"], refusal["held_mark"]) == (4, "place one")
    assert sender.send(4, "two\n")[0] == 204
    assert sender.send(99, "x")[1]["held_mark"] is None, "the place behind what came without one is not known"


def test_a_chunk_that_was_taken_before_is_taken_again_also_when_it_was_joined(any_plane: Plane) -> None:
    sender = Sender(any_plane)
    for number in range(5):
        assert sender.send(2 * number, f"{number}\n")[0] == 204
    assert sender.send(8, "4\n")[0] == 204, "its answer was lost"
    assert sender.send(2, "1\n")[0] == 204
    assert any_plane.get(LOGS)["data"] == "0\n1\n2\n3\n4\n"


def test_a_dot_a_second_for_days_is_no_row_a_second(served: Plane) -> None:
    sender = Sender(served)
    for number in range(200):
        assert sender.send(number, ".")[0] == 204
    assert len(served.rows(sa.select(task_logs.c.start))) == 1
    assert served.get(f"{LOGS}?from=150")["data"] == "." * 50, "a place inside a row"


def test_no_more_than_the_last_mebibyte_is_shown_and_the_rest_is_counted(served: Plane) -> None:
    sender = Sender(served)
    piece = "0123456789abcde\n" * 40_000
    for number in range(4):
        assert sender.send(number * len(piece), piece)[0] == 204
    log = served.get(LOGS)
    assert log["to"] == 4 * len(piece)
    assert len(log["data"]) == LOG_KEEP_BYTES == log["to"] - log["from"]
    assert log["dropped"] == log["from"]


def test_bytes_that_no_text_holds_keep_their_positions(any_plane: Plane) -> None:
    sender = Sender(any_plane)
    assert sender.send(0, "ab", to=3)[0] == 204, "one of the three was NUL"
    assert sender.send(3, "cd\n")[0] == 204
    assert any_plane.get(f"{LOGS}?from=3")["data"] == "cd\n"
    assert any_plane.get(LOGS)["to"] == 6


def test_a_follow_goes_to_the_node_with_a_beat_and_ends(served: Plane) -> None:
    sender = Sender(served)
    assert not sender.node.beat()[1]["follow"]
    served.get(f"{LOGS}?follow=true")
    (follow,) = sender.node.beat()[1]["follow"]
    assert follow["from_tail_bytes"] == LOG_KEEP_BYTES
    served.get(f"{LOGS}?follow=true&attempt=7")
    assert len(sender.node.beat()[1]["follow"]) == 1, "an attempt that is not there is nobody's"


def test_a_reader_at_one_process_is_told_to_a_node_at_another(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.database() as url, contextlib.ExitStack() as stack:
        first, stop_first = start_plane(tmp_path / "a", database_url=url)
        stack.callback(stop_first)
        first.parts.db.write(lambda tx: tx.execute(sa.delete(tokens)))  # the second makes the same ones
        second, stop_second = start_plane(tmp_path / "b", database_url=url)
        stack.callback(stop_second)
        node = first.node()
        first.running(node, "t1")
        second.get(f"{LOGS}?follow=true")
        until("the node is told", lambda: [follow["task_id"] for follow in node.beat()[1]["follow"]] == ["t1"])
        written = first.rows(sa.select(tasks.c.log_until))
        second.get(f"{LOGS}?follow=true")
        assert first.rows(sa.select(tasks.c.log_until)) == written, "not at each question"

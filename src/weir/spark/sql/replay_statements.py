"""REPLAY in `weir sql`: the statement is the whole replay, or only its selection for the command `weir replay`."""

import time
from datetime import UTC, datetime

from pyspark.errors import PySparkException

from weir.client.replays import all_replays, find_replay, forget_replay
from weir.model.definitions import Replay, table_name
from weir.model.errors import SqlError
from weir.model.moments import parse_moment_ms
from weir.spark.replay.delivery import Delivery, go_on
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.replay.selection import Selector, is_kept
from weir.spark.sql import statements as s
from weir.spark.sql.results import Done, Rows
from weir.spark.tables.names import WeirCluster, topic_named
from weir.spark.tables.topic_tables import Tables

COLUMNS = ("id", "topic", "into", "where", "state", "selected", "delivered", "by", "begun")


class ReplayConsole:
    def __init__(self, tables: Tables, place: WeirCluster) -> None:
        self._place = place
        self._selector = Selector(tables, place)

    def do(self, statement: s.ReplayMessages | s.SelectReplay | s.CountReplay | s.ShowReplays) -> Rows | Done:
        if isinstance(statement, s.ShowReplays):
            return Rows(COLUMNS, [row_of(one) for one in all_replays(self._place.access)])
        if isinstance(statement, s.SelectReplay):
            return self._select(statement.id)
        if isinstance(statement, s.CountReplay):
            return self._count(statement.wanted)
        wanted = resolve(self._place, request_of(statement))
        if statement.dry_run:
            return self._count(wanted)
        picked = self._selector.picked(wanted)  # what is wrong with the condition is said before anything is kept
        replay = begin(self._place, wanted)
        done = go_on(self._place, replay, lambda one: self._selector.write(one, picked), Delivery(self._place))
        count = sum(done.delivered)
        return Done(
            f"{count} messages of {table_name(done.topic)} delivered again to {done.into} (replay {done.id})",
            {"replay": done.id, "messages": count},
        )

    def _count(self, wanted: Replay) -> Rows:
        return Rows(("partition", "messages"), sorted(self._selector.count(wanted).items()))

    def check(self, statement: s.ReplayMessages) -> None:
        """WeirError if it cannot be done; nothing is kept."""
        self._selector.picked(resolve(self._place, request_of(statement)))

    def _select(self, replay_id: str) -> Done:
        """For whoever began it. A condition that is none leaves no replay behind."""
        replay = find_replay(self._place.access, replay_id)
        try:
            picked = self._selector.picked(replay)
        except (PySparkException, SqlError):
            if not is_kept(self._place, replay):
                forget_replay(self._place.access, replay)
            raise
        self._selector.write(replay, picked)
        return Done(f"the messages of replay {replay_id} are kept", {"replay": replay_id})


def request_of(statement: s.ReplayMessages) -> Request:
    now_ms = time.time_ns() // 1_000_000
    return Request(
        topic_named(statement.name),
        statement.into,
        statement.where,
        None if statement.since is None else _moment(statement.since, now_ms),
        None if statement.until is None else _moment(statement.until, now_ms),
        statement.rate,
    )


def _moment(text: str, now_ms: int) -> int:
    try:
        return parse_moment_ms(text, now_ms)
    except Exception as bad:
        raise SqlError(f"{text!r} is no moment", hint="write '2026-11-16T08:00:00Z' or '-2h'") from bad


def row_of(one: Replay) -> tuple[object, ...]:
    return (
        one.id,
        table_name(one.topic),
        one.subscription or table_name(one.target),
        one.where,
        one.state.value,
        sum(one.selected),
        sum(one.delivered),
        one.role,
        datetime.fromtimestamp(one.created_ms / 1000, UTC),
    )

"""Replays whose command, broker and store are killed at each step of delivering and recording: each message once.

The selection is written by hand: Spark is not needed for any of this.
"""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weir.client.replays import all_replays, find_replay
from weir.client.sink_epochs import commit_epoch
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.spark.replay.delivery import Delivery, go_on
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.replay.selection import is_kept
from weir.spark.tables.names import WeirCluster
from weir.testing.processes.up import UpProcess

from .conftest import Topics
from .replay_kit import Command, place_of, selecting, take
from .sql_session import stored

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

STEPS = ("counted", "fixed", "sending", "sent", "reported", "delivered", "done")
PARTS = {part: [f"{part}-{at:02d}" for at in range(20)] for part in range(2)}
VALUES = [value for part in PARTS.values() for value in part]


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Broker, bookie and metadata are one process: SIGKILL ends all three."""
    process = UpProcess(tmp_path_factory.mktemp("killed")).start()
    yield process
    process.close()


class Killer:
    """Kills it at each step, when that is reached for the first time, and starts it again."""

    def __init__(self, weir: UpProcess) -> None:
        self._weir = weir
        self.left = list(STEPS)
        #: Advances with each batch, so that it is told often how far the replay is.
        self.now_s = 0.0

    def reached(self, step: str) -> None:
        self.now_s += 0.3
        if step in self.left:
            self.left.remove(step)
            self._weir.kill()
            self._weir.start()

    def finish(self, place: WeirCluster, replay: Replay, topics: Topics) -> Replay:
        """Whatever fails is resumed, as somebody would who types `weir replay resume`."""
        delivery = Delivery(place, reached=self.reached, now=lambda: self.now_s, sleep=lambda _: None)
        select, picked = selecting(topics, place, PARTS), False
        for _ in range(2 * len(STEPS)):
            try:
                now = find_replay(place.access, replay.id)
                if now.state is ReplayState.SELECTING and not picked:
                    select(now)
                    picked = True
                return go_on(place, now, lambda _: None, delivery)
            except WeirError:
                continue
        raise AssertionError("it does not end")


@pytest.mark.parametrize("into", ["subscription:billing", "topic"])
def test_broker_and_store_that_are_killed_at_every_step_lose_no_message_and_deliver_none_twice(
    weir: UpProcess, into: str, tmp_path: Path
) -> None:
    topics = Topics(weir)
    place = place_of(topics)
    place = replace(place, access=replace(place.access, patience_s=60.0))
    kind = into.partition(":")[0]
    source, target = topics.create(2, name=f"from-{kind}"), topics.create(2, name=f"to-{kind}")
    for subscription in ("billing", "other"):
        take(weir.pulsar_url, tmp_path, source, subscription, 0)
    goal = target if into == "topic" else into
    replay = begin(place, resolve(place, Request(TopicName.parse(source), goal, rate=20)))
    killer = Killer(weir)
    done = killer.finish(place, replay, topics)
    assert killer.left == []
    assert (done.state, done.selected, done.delivered) == (ReplayState.DONE, (20, 20), (20, 20))
    if into == "topic":
        assert [value for _, value in stored(topics.servers, target)] == VALUES
        return
    for part in range(2):
        topics.fill(source, [f"last {part}"], part)
    got = take(weir.pulsar_url, tmp_path, source, "billing", len(VALUES) + 2)
    assert sorted(got) == sorted([*VALUES, "last 0", "last 1"])
    assert [one for part in range(2) for one in got if one.startswith(f"{part}-")] == VALUES
    assert sorted(take(weir.pulsar_url, tmp_path, source, "other", 2)) == ["last 0", "last 1"]
    assert stored(topics.servers, target) == []


#: Where the command dies, and what the replay is then.
COMMAND_STEPS = {
    "begun": ReplayState.SELECTING,
    "counted": ReplayState.SELECTING,
    "fixed": ReplayState.DELIVERING,
    "sending": ReplayState.DELIVERING,
    "sent": ReplayState.DELIVERING,
    "reported": ReplayState.DELIVERING,
    "delivered": ReplayState.DELIVERING,
    "done": ReplayState.DONE,
}


def test_a_command_that_is_killed_at_any_step_goes_on_where_it_was(weir: UpProcess, tmp_path: Path) -> None:
    command = Command(weir.http_url, tmp_path)
    topics = Topics(weir)
    place, source = place_of(topics), topics.create(2, name="from-command")
    for subscription in ("billing", "other"):
        take(weir.pulsar_url, tmp_path, source, subscription, 0)
    words = ("--topic", source, "--into", "subscription:billing", "--rate", "10")
    for step, state in COMMAND_STEPS.items():
        assert command.start(*words, stop_at=step).wait(200) == -signal.SIGKILL, (step, command.log)
        (replay,) = all_replays(place.access, TopicName.parse(source))
        assert replay.state is state, step
        if step == "begun":  # what Spark does of it is done here
            selecting(topics, place, PARTS)(replay)
            commit_epoch(place.access, f"replay-{replay.id}", 0, [])
        words = ("resume", replay.id)
    assert command.start(*words).wait(200) == 0, command.log
    (replay,) = all_replays(place.access, TopicName.parse(source))
    assert (replay.state, replay.selected, replay.delivered) == (ReplayState.DONE, (20, 20), (20, 20))
    assert not is_kept(place, replay)
    for part in range(2):
        topics.fill(source, [f"last {part}"], part)
    assert sorted(take(weir.pulsar_url, tmp_path, source, "billing", 42)) == sorted([*VALUES, "last 0", "last 1"])
    assert sorted(take(weir.pulsar_url, tmp_path, source, "other", 2)) == ["last 0", "last 1"]

"""What was picked is delivered once, to one subscription alone or to a topic, wherever the process is killed.

The selection is written by hand: Spark is not needed for any of this.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner

from weir.cli.main import cli
from weir.client.admin import ask_v2
from weir.client.replays import all_replays, find_replay
from weir.client.sink_epochs import commit_epoch, last_epoch
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import ConfigError, ReplayStateError, StaleEpochError
from weir.model.topics import TopicName
from weir.spark.replay.delivery import Delivery, cancel, go_on, sweep
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.replay.selection import selection_topic
from weir.spark.tables.names import WeirCluster
from weir.testing.processes.up import UpProcess

from .conftest import Topics
from .replay_kit import new_name, place_of, selecting
from .sql_session import stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def client(up) -> Iterator[pulsar.Client]:
    found = pulsar.Client(up.pulsar_url)
    yield found
    found.close()


@pytest.fixture
def place(topics: Topics) -> WeirCluster:
    return place_of(topics)


def _kill_at(step: str, number: int) -> Callable[[str], None]:
    seen = 0

    def reached(at: str) -> None:
        nonlocal seen
        seen += at == step
        if at == step and seen == number:
            raise KilledError

    return reached


def test_a_replay_that_is_killed_at_any_step_delivers_each_message_once(
    topics: Topics, place: WeirCluster
) -> None:
    source, target = topics.create(2, name=new_name("from")), topics.create(2, name=new_name("to"))
    wanted = resolve(place, Request(TopicName.parse(source), target, rate=8))
    assert (wanted.batch, wanted.subscription) == (2, None)
    replay = begin(place, wanted)
    values = {part: [f"{part}-{at:02d}" for at in range(9)] for part in range(2)}
    select = selecting(topics, place, values)
    steps = [("counted", 1), ("fixed", 1), ("sending", 2), ("sent", 3), ("sent", 2), ("delivered", 1)]
    for step, number in steps:
        again = find_replay(place.access, replay.id)
        delivery = Delivery(place, reached=_kill_at(step, number), sleep=lambda _: None)
        selects = select if step == "counted" else (lambda _: None)
        with pytest.raises(KilledError):
            go_on(place, again, selects, delivery)
    done = go_on(place, find_replay(place.access, replay.id), select, Delivery(place, sleep=lambda _: None))
    assert (done.state, done.selected, done.delivered) == (ReplayState.DONE, (9, 9), (9, 9))
    assert [value for _, value in stored(topics.servers, target)] == [*values[0], *values[1]]
    with topics.cluster() as cluster:
        assert selection_topic(done).local not in cluster.topics()
    with pytest.raises(ReplayStateError):
        go_on(place, replace(done, state=ReplayState.CANCELLED), select, Delivery(place))


def test_one_subscription_alone_gets_them_and_the_others_have_no_backlog(
    topics: Topics, place: WeirCluster, client: pulsar.Client
) -> None:
    topic = topics.create(1, name=new_name("orders"))
    topics.fill(topic, ["first"])
    name = new_name("billing")  # others on this broker have theirs
    earliest = pulsar.InitialPosition.Earliest
    billing = client.subscribe(topic, name, pulsar.ConsumerType.Shared, initial_position=earliest)
    other = client.subscribe(topic, "other", pulsar.ConsumerType.Exclusive, initial_position=earliest)
    try:
        for consumer in (billing, other):
            consumer.acknowledge(consumer.receive(timeout_millis=60_000))
        found = resolve(place, Request(None, name))
        assert (found.topic, found.subscription) == (TopicName.parse(topic), name)
        replay = begin(place, found)
        go_on(place, replay, selecting(topics, place, {0: ["a", "b", "c"]}), Delivery(place))
        topics.fill(topic, ["last"])
        again = [billing.receive(timeout_millis=60_000) for _ in range(4)]
        assert [one.data() for one in again] == [b"a", b"b", b"c", b"last"]
        properties = again[0].properties()
        assert (properties["weir-replay-id"], properties["weir-replay-subscription"]) == (replay.id, name)
        assert again[0].partition_key() == "a"
        for one in again:
            billing.acknowledge(one)
        assert other.receive(timeout_millis=60_000).data() == b"last"
        assert [value for _, value in stored(topics.servers, topic)] == ["first", "last"]
        told = ask_v2(place.access, "GET", f"persistent/public/default/{topic}/partitioned-stats")
        assert told["subscriptions"]["other"]["msgBacklog"] == 1
    finally:
        billing.close()
        other.close()


def test_what_cannot_be_replayed_is_said_before_anything_is_kept(topics: Topics, place: WeirCluster) -> None:
    topic, other = topics.create(name=new_name("wrong")), topics.create(name=new_name("other"))
    before = len(all_replays(place.access))
    name = TopicName.parse(topic)
    for request in (
        Request(name, topic),
        Request(name, "nobody-knows"),
        Request(name, f"subscription:{other}"),
        Request(None, f"topic:{other}"),
        Request(None, "no-such-subscription"),
        Request(name, other, since_ms=5, until_ms=5),
    ):
        with pytest.raises(ConfigError):
            resolve(place, request)
    assert len(all_replays(place.access)) == before


def test_a_cancelled_replay_delivers_nothing_more(topics: Topics, place: WeirCluster) -> None:
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    assert cancel(place, replay).state is ReplayState.CANCELLED
    with pytest.raises(ReplayStateError):
        go_on(place, find_replay(place.access, replay.id), lambda _: None, Delivery(place))
    assert stored(topics.servers, target) == []
    running = begin(place, resolve(place, Request(TopicName.parse(source), target, rate=4)))

    def end(step: str) -> None:
        if step == "sent" and len(stored(topics.servers, target)) == 2:
            cancel(place, running)

    clock = count(step=2)  # at each step it is time to tell how far it is
    delivery = Delivery(place, reached=end, now=lambda: float(next(clock)), sleep=lambda _: None)
    with pytest.raises(ReplayStateError, match="is cancelled"):
        go_on(place, running, selecting(topics, place, {0: ["a", "b", "c"]}), delivery)
    assert stored(topics.servers, target) == [("a", "a"), ("b", "b")]
    assert find_replay(place.access, running.id).delivered == (2,)


def test_the_command_lists_who_replayed_what_ends_one_and_goes_on_with_one(
    topics: Topics, place: WeirCluster
) -> None:
    def weir(*words: str) -> str:
        result = CliRunner().invoke(cli, ["replay", *words, "--url", topics.up.http_url])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    request = Request(TopicName.parse(source), target, "value = 'a'")
    left, ended = (begin(place, resolve(place, request)) for _ in range(2))
    selecting(topics, place, {0: ["a"]})(left)
    Delivery(place).fix(left)
    assert "cancelled" in weir("cancel", ended.id)
    assert "1 messages" in weir("resume", left.id)
    found = {one["id"]: one for one in json.loads(weir("list", source, "--json"))}
    assert {one["state"] for one in found.values()} == {"cancelled", "done"}
    assert (found[left.id]["where"], found[left.id]["delivered"]) == ("value = 'a'", 1)
    assert left.id in weir("list", source)


def test_one_that_cannot_go_on_says_how_to_go_on_and_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with closing(UpProcess(tmp_path).start()) as up:
        topics = Topics(up)
        place = place_of(topics)
        source, target = topics.create(name="from"), topics.create(name="to")
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "pulsar.log"))
        client = pulsar.Client(up.pulsar_url, logger=quiet)
        gone = client.subscribe(source, "gone")
        left = [begin(place, resolve(place, Request(TopicName.parse(source), to))) for to in ("gone", target)]
        for replay in left:
            selecting(topics, place, {0: ["a"]})(replay)
            Delivery(place).fix(replay)
        gone.unsubscribe()
        client.close()
        result = CliRunner().invoke(cli, ["replay", "resume", "--url", up.http_url])
        assert result.exit_code == 1
        assert isinstance(result.exception, ReplayStateError)
        assert "1 of 2 replays failed to resume" in str(result.exception)
        assert f"`weir replay resume {left[0].id}` resumes it, `cancel` ends it" in result.stderr
        assert [value for _, value in stored(topics.servers, target)] == ["a"]
        assert find_replay(place.access, left[1].id).state is ReplayState.DONE


def _recreated(topics: Topics, topic: str) -> None:
    topics.delete(topic)
    topics.create(name=topic)


def test_a_replay_whose_source_or_target_was_created_again_ends_with_an_error(
    topics: Topics, place: WeirCluster
) -> None:
    def never(one: Replay) -> None:
        raise AssertionError(one)

    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    told = "was deleted and created again after replay"
    # Half of it was delivered: the rest would go to a topic that has nothing of the first half.
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target, rate=8)))
    select = selecting(topics, place, {0: ["a", "b", "c", "d"]})
    with pytest.raises(KilledError):
        go_on(place, replay, select, Delivery(place, reached=_kill_at("sent", 1), sleep=lambda _: None))
    _recreated(topics, target)
    with pytest.raises(ReplayStateError, match=f"{target} {told}"):
        go_on(place, find_replay(place.access, replay.id), never, Delivery(place))
    assert stored(topics.servers, target) == []
    assert cancel(place, replay).state is ReplayState.CANCELLED
    # While it is delivered.
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))

    def recreate(step: str) -> None:
        if step == "sending":
            _recreated(topics, target)

    with pytest.raises(ReplayStateError, match=f"{target} {told}"):
        go_on(place, replay, select, Delivery(place, reached=recreate))
    # Nothing was picked yet: the condition would be asked of other messages.
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    _recreated(topics, source)
    with pytest.raises(ReplayStateError, match=f"{source} {told}"):
        go_on(place, replay, never, Delivery(place))
    # While Spark picks them.
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))

    def late(one: Replay) -> None:
        select(one)
        _recreated(topics, source)

    with pytest.raises(ReplayStateError, match=f"{source} {told}"):
        go_on(place, replay, late, Delivery(place))
    # Those of the second replay, which were on their way.
    assert [value for _, value in stored(topics.servers, target)] == ["a", "b", "c", "d"]


def test_a_selection_that_an_earlier_attempt_has_written_counts_though_the_later_one_failed(
    topics: Topics, place: WeirCluster
) -> None:
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))

    def fenced(one: Replay) -> None:
        selecting(topics, place, {0: ["a"]})(one)  # by Spark, for a client that was killed
        commit_epoch(place.access, f"replay-{one.id}", 0, [])
        raise StaleEpochError("'weir-sink/...' is at epoch 2, the producer at 0")

    assert go_on(place, replay, fenced, Delivery(place)).delivered == (1,)
    assert [value for _, value in stored(topics.servers, target)] == ["a"]


class Watcher:
    """What whoever watches a replay is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.seen = 0

    def begin(self, total: int, delivered: int) -> None:
        self.begun.append((total, delivered))

    def advance(self, messages: int) -> None:
        self.seen += messages


def test_a_rate_is_kept_and_whoever_watches_is_told_how_far_it_is_also_after_a_kill(
    topics: Topics, place: WeirCluster
) -> None:
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target, rate=20)))
    assert (replay.rate, replay.batch) == (20, 5)
    now_s, sent = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def reached(step: str) -> None:
        nonlocal sent
        if step == "sent":
            sent += 5
            assert sent <= 20 * now_s + 5  # of a second's messages a batch may be ahead
        if sent == 40:
            raise KilledError

    values = [f"{at:02d}" for at in range(60)]
    select = selecting(topics, place, {0: values})
    first, second = Watcher(), Watcher()
    with pytest.raises(KilledError):
        go_on(place, replay, select, Delivery(place, first, reached=reached, now=lambda: now_s, sleep=sleep))
    assert (first.begun, first.seen, sent) == ([(60, 0)], 35, 40)
    left = Delivery(place, second, now=lambda: now_s, sleep=sleep)
    go_on(place, find_replay(place.access, replay.id), select, left)
    assert (second.begun, second.seen) == ([(60, 40)], 20)
    assert now_s == pytest.approx(35 / 20 + 20 / 20)
    assert [value for _, value in stored(topics.servers, target)] == values


def test_on_a_terminal_a_bar_shows_how_far_it_is(topics: Topics, place: WeirCluster) -> None:
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    selecting(topics, place, {0: ["a", "b", "c"]})(replay)
    Delivery(place).fix(replay)
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
    command = ["replay", "resume", replay.id, "--url", topics.up.http_url]
    result = CliRunner().invoke(cli, command, env=terminal)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "3/3" in result.stderr
    assert "3 messages were delivered again" in result.stdout


def test_messages_that_were_picked_are_not_picked_again_and_nothing_is_left_in_the_end(
    topics: Topics, place: WeirCluster
) -> None:
    source, target = topics.create(name=new_name("from")), topics.create(name=new_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    select, sink = selecting(topics, place, {0: ["a", "b"]}), f"replay-{replay.id}"

    def write(one: Replay) -> None:
        select(one)
        commit_epoch(place.access, sink, 0, [])  # as Spark's sink does when all is there

    def never(one: Replay) -> None:
        raise AssertionError(one)

    for step, selects in (("counted", write), ("done", never)):
        with pytest.raises(KilledError):
            go_on(place, replay, selects, Delivery(place, reached=_kill_at(step, 1)))
    with topics.cluster() as cluster:
        assert selection_topic(replay).local in cluster.topics()
    assert last_epoch(place.access, sink) == 0
    sweep(place)
    with topics.cluster() as cluster:
        assert selection_topic(replay).local not in cluster.topics()
    assert last_epoch(place.access, sink) == -1
    assert [value for _, value in stored(topics.servers, target)] == ["a", "b"]

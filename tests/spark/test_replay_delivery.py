"""What was picked is delivered once, to one subscription alone or to a topic, wherever the process is killed.

The selection is written by hand: Spark is not needed for any of this.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pulsar
import pytest
from click.testing import CliRunner

from weir.cli.main import cli
from weir.client.blocking import Access, ask_v2
from weir.client.replays import all_replays, find_replay
from weir.model.errors import ConfigError, ReplayStateError
from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName
from weir.spark.replay.delivering import Delivery
from weir.spark.replay.doing import cancel, go_on
from weir.spark.replay.requests import Request, begin, resolve
from weir.spark.replay.selecting import make_selection, selection_topic
from weir.spark.sql.cluster import WeirCluster
from weir.wire.kafka.records_build import Record, build_batch

from .conftest import Topics
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
    return WeirCluster(Access(topics.up.http_url, patience_s=5.0), topics.servers)


def _name(what: str) -> str:
    return f"{what}-{time.time_ns()}"


def _select(topics: Topics, place: WeirCluster, partitions: dict[int, list[str]]) -> Callable[[Replay], None]:
    """As Spark would: the messages, with their headers, in the partitions that they go to."""

    def select(replay: Replay) -> None:
        name = make_selection(place, replay, max(partitions) + 1).local
        told = [(b"weir-replay-id", replay.id.encode()), (b"weir-replay-offset", b"7")]
        if replay.subscription is not None:
            told.append((b"weir-replay-subscription", replay.subscription.encode()))
        for partition, values in partitions.items():
            records = [
                Record(at, 1_700_000_000_000 + at, value.encode(), value.encode(), told)
                for at, value in enumerate(values)
            ]
            for record in records:  # batches of one: they are delivered in others
                topics.send(name, build_batch([replace(record, offset_delta=0)]), partition)

    return select


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
    source, target = topics.create(2, name=_name("from")), topics.create(2, name=_name("to"))
    wanted = resolve(place, Request(TopicName.parse(source), target, rate=8))
    assert (wanted.batch, wanted.subscription) == (2, None)
    replay = begin(place, wanted)
    values = {part: [f"{part}-{at:02d}" for at in range(9)] for part in range(2)}
    select = _select(topics, place, values)
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
    topic = topics.create(1, name=_name("orders"))
    topics.fill(topic, ["first"])
    name = _name("billing")  # others on this broker have theirs
    earliest = pulsar.InitialPosition.Earliest
    billing = client.subscribe(topic, name, pulsar.ConsumerType.Shared, initial_position=earliest)
    other = client.subscribe(topic, "other", pulsar.ConsumerType.Exclusive, initial_position=earliest)
    try:
        for consumer in (billing, other):
            consumer.acknowledge(consumer.receive(timeout_millis=60_000))
        found = resolve(place, Request(None, name))
        assert (found.topic, found.subscription) == (TopicName.parse(topic), name)
        replay = begin(place, found)
        go_on(place, replay, _select(topics, place, {0: ["a", "b", "c"]}), Delivery(place))
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
    topic, other = topics.create(name=_name("wrong")), topics.create(name=_name("other"))
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
    source, target = topics.create(name=_name("from")), topics.create(name=_name("to"))
    replay = begin(place, resolve(place, Request(TopicName.parse(source), target)))
    assert cancel(place, replay).state is ReplayState.CANCELLED
    with pytest.raises(ReplayStateError):
        go_on(place, find_replay(place.access, replay.id), lambda _: None, Delivery(place))
    assert stored(topics.servers, target) == []


def test_the_command_lists_who_replayed_what_ends_one_and_goes_on_with_one(
    topics: Topics, place: WeirCluster
) -> None:
    def weir(*words: str) -> str:
        result = CliRunner().invoke(cli, ["replay", *words, "--url", topics.up.http_url])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    source, target = topics.create(name=_name("from")), topics.create(name=_name("to"))
    request = Request(TopicName.parse(source), target, "value = 'a'")
    left, ended = (begin(place, resolve(place, request)) for _ in range(2))
    _select(topics, place, {0: ["a"]})(left)
    Delivery(place).fix(left)
    assert "cancelled" in weir("cancel", ended.id)
    assert "1 messages" in weir("resume", left.id)
    found = {one["id"]: one for one in json.loads(weir("list", source, "--json"))}
    assert {one["state"] for one in found.values()} == {"cancelled", "done"}
    assert (found[left.id]["where"], found[left.id]["delivered"]) == ("value = 'a'", 1)
    assert left.id in weir("list", source)

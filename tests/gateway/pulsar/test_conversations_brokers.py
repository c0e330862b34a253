"""What clients are told of other brokers: lookups, redirects, and closed producers and consumers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weir.broker.api.broker import Owner
from weir.model.topics import TopicName
from weir.wire.pulsar import pulsar_api_pb2 as api

Play = Callable[..., None]

TOPIC = "persistent://public/default/t"
FAR = Owner(
    False, {"pulsar": "pulsar://far:6650", "pulsar_tls": "pulsar+ssl://far:6651", "http": "http://far"}, "b"
)
_Found = api.CommandLookupTopicResponse


def told(found: api.CommandLookupTopicResponse) -> tuple[Any, ...]:
    return found.response, found.authoritative, found.brokerServiceUrl, found.brokerServiceUrlTls


def move(stage: Any, owner: Owner = FAR) -> None:
    stage.broker.elsewhere[TopicName.parse(TOPIC)] = owner


def test_a_lookup_names_the_broker_that_has_the_topic(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1))
        here = await peer.hear(api.CommandLookupTopicResponse)
        assert told(here) == (_Found.Connect, True, "pulsar://server:6650", "")
        assert not here.proxy_through_service_url
        move(stage)
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=2))
        far = await peer.hear(api.CommandLookupTopicResponse)
        assert told(far) == (_Found.Connect, True, "pulsar://far:6650", "pulsar+ssl://far:6651")

    play(conversation)


def test_a_topic_that_nobody_has_is_asked_for_where_it_should_be(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        move(stage, replace(FAR, taken=False))
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1))
        far = await peer.hear(api.CommandLookupTopicResponse)
        assert told(far) == (_Found.Redirect, True, "pulsar://far:6650", "pulsar+ssl://far:6651")

    play(conversation)


def test_a_broker_without_a_listener_of_the_client_s_kind_is_not_named(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        move(stage, Owner(False, {"pulsar_tls": "pulsar+ssl://far:6651"}, "b"))
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1))
        found = await peer.hear(api.CommandLookupTopicResponse)
        assert (found.response, found.error) == (_Found.Failed, api.ServerError.ServiceNotReady)

    play(conversation)


def test_a_listener_may_be_asked_for_by_its_name(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        move(stage)
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1, advertised_listener_name="pulsar_tls"))
        found = await peer.hear(api.CommandLookupTopicResponse)
        assert told(found) == (_Found.Connect, True, "", "pulsar+ssl://far:6651")
        for name in ("internal", "http"):
            peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=2, advertised_listener_name=name))
            refused = await peer.hear(api.CommandLookupTopicResponse)
            assert (refused.response, refused.error) == (_Found.Failed, api.ServerError.NotAllowedError)

    play(conversation)


def test_who_comes_to_a_broker_that_has_not_the_topic_shall_look_again(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        move(stage)
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.ServiceNotReady
        kind = api.CommandSubscribe.Shared
        peer.say(api.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, request_id=2, subType=kind))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.ServiceNotReady

    play(conversation)


def test_a_producer_whose_topic_moves_is_told_where_to(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        move(stage)
        stage.broker.at(TOPIC).producers[0].shut("moved")
        closed = await peer.hear(api.CommandCloseProducer)
        assert (closed.producer_id, closed.assignedBrokerServiceUrl, closed.assignedBrokerServiceUrlTls) == (
            1,
            "pulsar://far:6650",
            "pulsar+ssl://far:6651",
        )

    play(conversation)


def test_a_consumer_whose_topic_moves_is_told_where_to(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        move(stage)
        stage.broker.at(TOPIC).consumers[0].shut("moved")
        closed = await peer.hear(api.CommandCloseConsumer)
        assert (closed.consumer_id, closed.assignedBrokerServiceUrl) == (1, "pulsar://far:6650")

    play(conversation)


def test_a_producer_whose_topic_stays_is_told_of_no_other_broker(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        stage.broker.at(TOPIC).producers[0].shut("unloaded")
        closed = await peer.hear(api.CommandCloseProducer)
        assert not closed.HasField("assignedBrokerServiceUrl")
        assert not closed.HasField("assignedBrokerServiceUrlTls")

    play(conversation)


def test_a_client_that_knows_no_close_command_loses_its_connection(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.stranger()
        peer.say(api.CommandConnect(client_version="old", protocol_version=4))
        await peer.hear(api.CommandConnected)
        await peer.produce(TOPIC)
        stage.broker.at(TOPIC).producers[0].shut("moved")
        assert await peer.hangs_up()

    play(conversation)

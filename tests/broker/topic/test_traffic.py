"""What passes through a topic is counted, whoever takes it: subscriptions, and readers by offset."""

from collections.abc import Callable

from weir.broker.rates import Traffic
from weir.broker.topics.non_persistent import NonPersistentTopic
from weir.model.policies import DEFAULT_POLICIES
from weir.model.topics import TopicName


def test_what_is_stored_delivered_and_read_by_offset_is_counted(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        assert topic.traffic() == Traffic()
        consumer = await bench.consumer(topic)
        await bench.publish(await bench.producer(topic), "four", "more")
        stored = topic.traffic()
        assert (stored.messages_in, stored.bytes_in, stored.messages_out) == (2, 8, 0)
        await bench.receive(consumer, 2)
        assert (topic.traffic().messages_out, topic.traffic().bytes_out) == (2, 8)
        assert len(await topic.reader().read(0, 1000)) == 2
        assert (topic.traffic().messages_out, topic.traffic().bytes_out) == (4, 16)
        assert len(topic.reader().read_cached(1, 1000) or ()) == 1
        assert topic.traffic() == Traffic(2, 8, 5, 20)

    run(scenario)


def test_a_topic_that_is_not_stored_counts_too(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = NonPersistentTopic(
            await bench.context(), TopicName.parse("non-persistent://a/b/c"), DEFAULT_POLICIES
        )
        await bench.publish(await bench.producer(topic), "four")
        assert topic.traffic() == Traffic(1, 4, 0, 0)

    run(scenario)


def test_what_was_delivered_to_a_subscription_that_is_gone_stays_counted(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        await bench.publish(producer, "a", "b")
        consumer = await bench.consumer(topic, "passing", durable=False)
        await bench.receive(consumer, 2)
        before = topic.stats().delivered
        await consumer.close()
        assert topic.subscriptions == {}
        after = topic.stats().delivered
        assert (after.messages, after.bytes) == (before.messages, before.bytes) == (2, 2)
        await topic.close()

    run(scenario)

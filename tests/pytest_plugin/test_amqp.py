"""The plug-in with RabbitMQ's clients, Celery among them."""

from contextlib import closing

import celery
import pika
import pytest
from celery.contrib.testing.worker import start_worker

pytestmark = pytest.mark.process


@pytest.fixture
def channel(weir):
    with closing(pika.BlockingConnection(pika.URLParameters(weir.amqp + "?heartbeat=2"))) as connection:
        yield connection.channel()


def _got(channel, queue):
    return channel.basic_get(queue, auto_ack=True)[2]


def test_messages_expire_into_their_dead_letter_queue_while_the_connection_lives_on(weir, channel):
    channel.queue_declare("dead", durable=True)
    rules = {"x-message-ttl": 3_600_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("work", durable=True, arguments=rules)
    channel.basic_publish("", "work", b"too late", pika.BasicProperties(delivery_mode=2))
    weir.wait_for("work")
    weir.clock.advance("3 days")
    assert _got(channel, "dead") == b"too late"
    assert _got(channel, "work") is None


def test_delayed_messages_come_when_it_is_their_time(weir, channel):
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    channel.queue_declare("mail", durable=True)
    channel.queue_bind("mail", "later", "mail")
    delay = pika.BasicProperties(headers={"x-delay": 7_200_000}, delivery_mode=2)
    channel.confirm_delivery()
    channel.basic_publish("later", "mail", b"good morning", delay)
    weir.clock.advance("1h 59min")
    assert _got(channel, "mail") is None
    weir.clock.advance("1 min")
    assert _got(channel, "mail") == b"good morning"


def test_a_queue_that_nobody_uses_goes(weir, channel):
    channel.queue_declare("brief", arguments={"x-expires": 60_000})
    weir.clock.advance("2 minutes")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("brief", passive=True)


def test_queues_in_memory_can_be_filled_and_looked_at(weir, channel):
    channel.queue_declare("scratch")
    weir.produce("scratch", "one", {"two": 2})
    assert [m.text for m in weir.wait_for("scratch", 2)] == ["one", '{"two": 2}']
    assert _got(channel, "scratch") == b"one"
    assert _got(channel, "scratch") == b'{"two": 2}'
    weir.wait_until_empty("scratch")


def test_a_celery_worker_does_its_tasks(weir):
    app = celery.Celery("shop", broker=weir.amqp, backend="cache+memory://")
    app.conf.worker_hijack_root_logger = False

    @app.task
    def add(x, y):
        return x + y

    with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
        assert add.delay(2, 3).get(timeout=30) == 5
        assert add.delay(4, 5).get(timeout=30) == 9
        weir.wait_until_empty("celery")
        app.control.shutdown()

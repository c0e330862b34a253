"""The plug-in with Pulsar's client."""

from contextlib import closing
from datetime import timedelta

import pulsar
import pytest

pytestmark = pytest.mark.process


@pytest.fixture
def client(weir):
    with closing(pulsar.Client(weir.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as client:
        yield client


def test_a_delay_is_counted_from_when_it_was_sent_however_often_the_clock_was_moved(weir, client):
    consumer = client.subscribe("jobs", "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer("jobs")
    weir.clock.advance("3 days")
    producer.send(b"report", deliver_after=timedelta(hours=1))
    weir.clock.advance("59 minutes")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)
    weir.clock.advance("1 minute")
    assert consumer.receive(20_000).data() == b"report"


@pytest.mark.weir(config={"defaults.message_ttl": "1h"})
def test_what_nobody_acknowledged_expires(weir, client):
    consumer = client.subscribe("jobs", "s")
    client.create_producer("jobs").send(b"stale")
    assert weir.backlogs("jobs") == {"s": 1}
    weir.clock.advance("61 minutes")
    weir.wait_until_empty("jobs", "s")
    consumer.close()


def test_messages_and_positions_outlive_a_restart_and_a_kill(weir, client):
    producer = client.create_producer("jobs")
    producer.send(b"kept")
    address = weir.pulsar
    weir.clock.advance("1 day")
    weir.restart()
    weir.kill()
    assert not weir.running
    weir.start()
    assert weir.pulsar == address
    assert weir.clock.ahead > timedelta(hours=23)
    assert [m.text for m in weir.messages("jobs")] == ["kept"]
    consumer = client.subscribe("jobs", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(20_000).data() == b"kept"

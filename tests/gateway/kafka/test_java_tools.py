"""Apache Kafka's own Java clients, by its verifiable producer and consumer. All of its tools are run by
`python -m bench.kafka_tools`, a part of `make bench`."""

import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from weir.testing.processes.up import UpProcess

ROOT = Path(__file__).parents[3]
_MISSING = 77
_COPIED = 1000
_READ_S = 60.0


def tools(weir: UpProcess, name: str) -> "subprocess.CompletedProcess[str]":
    """Run those of the tools whose names have this in them."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.kafka_tools", "--only", name, "--server", weir.kafka, "--patience", "60"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _MISSING:
        pytest.skip(done.stdout.strip())
    return done


@pytest.mark.process
def test_the_verifiable_producer_and_consumer_find_nothing_lost_or_out_of_order(weir: UpProcess) -> None:
    done = tools(weir, "verifiable")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 2


@pytest.mark.process
def test_javas_transactions_have_an_epoch_each_and_copy_exactly_once(weir: UpProcess) -> None:
    done = tools(weir, "transactional")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 4
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": weir.kafka,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("copies", 0, 0)])
        copies = 0
        while (message := consumer.poll(_READ_S)) is not None and message.error() is None:
            copies += 1
        assert message is not None, "the end was not reached"
        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        assert copies == _COPIED
    finally:
        consumer.close()

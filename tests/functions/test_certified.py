"""A function at a Weir that asks every client for a certificate: `weir up --functions` comes in by its own."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from weir.testing.processes.certified import CertifiedUp

pytestmark = pytest.mark.process

_PATIENCE_S = 120.0


def test_a_function_is_deployed_and_run_by_certificates(tmp_path: Path) -> None:
    certified = CertifiedUp(tmp_path)
    certified.up.options = ("--functions",)
    (tmp_path / "f.py").write_text("def shout(message):\n    return message.text.upper()\n")
    certified.up.start()
    certificate, key = certified.files("admin")
    client = {
        "bootstrap.servers": certified.kafka,
        "security.protocol": "SSL",
        "ssl.ca.location": certified.ca,
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
        "log_level": 0,
    }
    try:
        code, said = certified.weir(
            "admin", "functions", "deploy", f"{tmp_path / 'f.py'}:shout", "--in", "low", "--out", "high"
        )
        assert code == 0, said
        producer = Producer(client)
        producer.produce("low", b"hello")
        assert producer.flush(_PATIENCE_S) == 0
        consumer = Consumer({**client, "group.id": "g", "topic.metadata.refresh.interval.ms": 200})
        consumer.assign([TopicPartition("high", 0, 0)])
        deadline, found = time.monotonic() + _PATIENCE_S, None
        while found is None or found.error() is not None:
            assert time.monotonic() < deadline, certified.up.log
            found = consumer.poll(1.0)
        consumer.close()
        assert found.value() == b"HELLO"
        for who, told in ((None, "that it trusts"), ("nobody", "there is no function")):
            code, said = certified.weir(who, "functions", "delete", "shout")
            assert (code, told in said) == (1, True), said
    finally:
        certified.up.close()

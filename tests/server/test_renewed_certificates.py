"""A running Weir takes a renewed certificate without a restart, for the clients of every protocol."""

import asyncio
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pika
import pulsar
import pytest
from confluent_kafka.admin import AdminClient

from weir.runtime.real import real_runtime
from weir.server.addresses import Address
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.certificates import Certificate, make_certificate


@dataclass(frozen=True)
class Served:
    node: BrokerNode
    #: What the configuration names, and three certificates that can lie there, each its own authority.
    file: Path
    key_file: Path
    made: list[Certificate]

    def put(self, number: int) -> None:
        """As a renewal does it: aside, then in its place."""
        for source, target in ((self.made[number].file, self.file), (self.made[number].key_file, self.key_file)):
            aside = target.with_suffix(".new")
            aside.write_bytes(source.read_bytes())
            aside.replace(target)

    def trust(self, number: int) -> str:
        return str(self.made[number].file)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        made.append(make_certificate(tmp_path / str(number)))
    file, key = tmp_path / "server.pem", tmp_path / "server.key"
    listeners = [
        f"listeners.{name}=127.0.0.1:0" for name in ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")
    ]
    listeners += [f"listeners.{name}=" for name in ("kafka", "amqp", "rocketmq", "http")]
    listeners += ["listeners.pulsar=127.0.0.1:0", f"tls.certificate={file}", f"tls.key={key}"]
    settings = [*listeners, f"data={tmp_path / 'data'}", "console.enabled=false"]
    node = BrokerNode(real_runtime(), load(assignments=settings).config)
    served = Served(node, file, key, made)
    served.put(0)
    await node.start()
    yield served
    await node.close()


def _pulsar(address: Address, trusted: str) -> None:
    client = pulsar.Client(
        f"pulsar+ssl://{address}",
        tls_trust_certs_file_path=trusted,
        operation_timeout_seconds=30,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        client.get_topic_partitions("t")
    finally:
        client.close()


def _kafka(address: Address, trusted: str) -> None:
    settings = {"bootstrap.servers": str(address), "security.protocol": "ssl", "ssl.ca.location": trusted}
    AdminClient({**settings, "log_level": 0}).list_topics(timeout=30)


def _amqp(address: Address, trusted: str) -> None:
    options = pika.SSLOptions(ssl.create_default_context(cafile=trusted), "localhost")
    parameters = pika.ConnectionParameters(address.host, address.port, ssl_options=options)
    pika.BlockingConnection(parameters).close()


def _http(address: Address, trusted: str) -> None:
    context = ssl.create_default_context(cafile=trusted)
    with urllib.request.urlopen(f"https://{address}/ready", context=context) as answer:
        assert answer.status == 200


async def _is_trusted(connect: Callable[[Address, str], None], address: Address, trusted: str) -> bool:
    try:
        await asyncio.to_thread(connect, address, trusted)
    except AssertionError:
        raise
    except Exception:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listener", "connect"), [("pulsar_tls", _pulsar), ("kafka_tls", _kafka), ("amqps", _amqp), ("https", _http)]
)
async def test_the_next_connection_sees_the_renewed_certificate(
    served: Served, listener: str, connect: Callable[[Address, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    address = served.node.addresses[listener]
    assert await _is_trusted(connect, address, served.trust(0))
    served.put(1)
    assert await _is_trusted(connect, address, served.trust(1))
    served.file.write_text("half a certi")
    assert await _is_trusted(connect, address, served.trust(1)), "what cannot be used is left alone, and told"
    assert f"still serving the old ones: tls.certificate: {served.file} is no certificate in PEM" in caplog.text
    served.put(0)
    assert await _is_trusted(connect, address, served.trust(0))
    if listener == "https":  # one that is quick to refuse
        assert not await _is_trusted(connect, address, served.trust(1))

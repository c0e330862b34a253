"""`weir tls`: certificates that official clients accept, in files that only their owner reads."""

import json
import ssl
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pulsar
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from weir.cli.main import cli
from weir.model.errors import ConfigError
from weir.server.config.load import load
from weir.testing.processes.up import UpProcess


def tls(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["tls", *arguments], catch_exceptions=False, standalone_mode=False)
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `weir tls init` filled."""
    folder = tmp_path_factory.mktemp("made") / "tls"
    tls("init", "--dir", str(folder), "--host", "weir.example", "--host", "10.0.0.5", "--client", "alice")
    return folder


@pytest.fixture(scope="module")
def up(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A Weir that serves TLS with these files, and knows clients by their certificates or tokens."""
    settings = [
        f"listeners.{name}=127.0.0.1:0" for name in ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")
    ]
    settings += [f"tls.certificate={made / 'server.pem'}", f"tls.key={made / 'server.key'}"]
    settings += [f"tls.client_ca={made / 'ca.pem'}", "auth.authenticate=true"]
    settings += ["auth.authorise=true", "auth.superusers=alice", "auth.token_secret=base64:" + "A" * 44]
    node = UpProcess(tmp_path_factory.mktemp("up"), *settings)
    yield node.start()
    node.close()


def port(up: UpProcess, listener: str) -> int:
    return int(up.addresses[listener].rpartition(":")[2])


def test_the_keys_are_their_owners_alone(made: Path) -> None:
    keys = list(made.glob("*.key"))
    assert {key.name for key in keys} == {"ca.key", "server.key", "client-alice.key"}
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


def test_nothing_is_overwritten(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    for again in (("init", "--dir", str(made)), ("client", "alice", "--dir", str(made))):
        with pytest.raises(ConfigError, match="exists"):
            tls(*again)
    with pytest.raises(ConfigError, match="exists"):  # nor is half of it made
        tls("init", "--dir", str(made), "--client", "bob")
    assert {path: path.read_bytes() for path in made.iterdir()} == before


@pytest.mark.parametrize("hosts", [(), ("--host", "weir.example")])
def test_what_it_prints_is_a_configuration(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    printed = tls("init", "--dir", str(tmp_path / "tls"), "--node", "broker-1", *hosts)
    tomllib.loads(printed)
    (tmp_path / "weir.toml").write_text(printed)
    config = load(file=tmp_path / "weir.toml").config
    assert config.tls.certificate == str(tmp_path / "tls/server.pem")
    assert config.cluster.authority == str(tmp_path / "tls/cluster-ca.pem")
    assert config.listeners.advertised_host == ("weir.example" if hosts else "")
    assert (config.listeners.kafka, str(config.listeners.kafka_tls).rpartition(":")[2]) == (None, "9093")


def test_a_renewed_certificate_ends_later_and_is_of_the_same_key_and_names(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path))
    tls("init", *folder, "--host", "weir.example", "--node", "b1", "--days", "10")
    keys = {path: path.read_bytes() for path in tmp_path.glob("*.key")}
    assert len(tls("renew", *folder, "--days", "100").splitlines()) == 2
    shown = {Path(one["file"]).name: one for one in json.loads(tls("show", *folder, "--json"))}
    assert shown["server.pem"]["hosts"] == ["weir.example", "localhost", "127.0.0.1", "::1"]
    assert shown["node-b1.pem"]["issuer"] == shown["cluster-ca.pem"]["name"] != shown["ca.pem"]["name"]
    assert {shown[name]["days_left"] for name in ("server.pem", "node-b1.pem")} == {99}
    assert {path: path.read_bytes() for path in tmp_path.glob("*.key")} == keys
    assert {path.suffix for path in tmp_path.iterdir()} == {".pem", ".key"}
    ssl.create_default_context(cafile=str(tmp_path / "ca.pem")).load_cert_chain(
        tmp_path / "server.pem", tmp_path / "server.key"
    )


def test_a_certificate_of_another_authority_is_not_renewed(made: Path, tmp_path: Path) -> None:
    tls("init", "--dir", str(tmp_path))
    with pytest.raises(ConfigError, match="no authority in"):
        tls("renew", str(made / "server.pem"), "--dir", str(tmp_path))


@pytest.mark.parametrize("name", ["../x", "", "x" * 65])
def test_a_name_that_is_none_is_refused(made: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        tls("client", name, "--dir", str(made))


@pytest.mark.process
def test_official_clients_come_in_with_these_files(up: UpProcess, made: Path) -> None:
    ca, certificate, key = (str(made / name) for name in ("ca.pem", "client-alice.pem", "client-alice.key"))
    client = pulsar.Client(
        f"pulsar+ssl://127.0.0.1:{port(up, 'pulsar_tls')}",
        tls_trust_certs_file_path=ca,
        tls_validate_hostname=True,
        authentication=pulsar.AuthenticationTLS(certificate, key),
    )
    try:
        client.create_producer("orders").send(b"of pulsar")
    finally:
        client.close()
    kafka = {"bootstrap.servers": f"127.0.0.1:{port(up, 'kafka_tls')}", "security.protocol": "SSL"}
    kafka |= {"ssl.ca.location": ca, "ssl.certificate.location": certificate, "ssl.key.location": key}
    producer = Producer(kafka)
    producer.produce("orders", b"of kafka")
    assert producer.flush(60) == 0
    consumer = Consumer(kafka | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert [_value(consumer), _value(consumer)] == [b"of pulsar", b"of kafka"]
    consumer.close()
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    secured = pika.SSLOptions(context, "localhost")
    credentials = pika.credentials.ExternalCredentials()
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port(up, "amqps"), ssl_options=secured, credentials=credentials)
    ) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        assert channel.basic_get("orders", auto_ack=True)[2] == b"of pulsar"


@pytest.mark.process
def test_commands_come_in_with_these_files(up: UpProcess, made: Path) -> None:
    url = ("--url", f"https://localhost:{port(up, 'https')}", "--ca", str(made / "ca.pem"))
    mine = ("--cert", str(made / "client-alice.pem"), "--cert-key", str(made / "client-alice.key"))
    done = CliRunner().invoke(cli, ["tenants", "list", *url, *mine], catch_exceptions=False)
    assert (done.exit_code, "public" in done.output) == (0, True)


def _value(consumer: Any) -> bytes:
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None
    value: bytes = message.value()
    return value

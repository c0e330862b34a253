"""A client at the port of another protocol: the message names both protocols and the right port."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
import requests
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from tests.cli.conftest import Outcome

from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess, environment
from weir.wire.amqp.frames import PROTOCOL_HEADER
from weir.wire.first_bytes import PULSAR, ServedPort, answer_to, protocol_of
from weir.wire.kafka import messages
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, request_frame
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import encode_command


def _kafka(key: ApiKey = ApiKey.API_VERSIONS, version: int = 3) -> bytes:
    request = messages.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return b"".join(map(bytes, request_frame(RequestHeader(key, version, 1, "test"), request)))


def _tls() -> bytes:
    sent = ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    return sent.read()


REMOTING = (
    b"\0\0\0\x60\0\0\0\x5c"
    + b'{"code":105,"extFields":{"topic":"t"},"flag":0,"language":"JAVA","opaque":0,"version":399}'.ljust(0x5C)
)
FIRST = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"),
    "TLS": _tls(),
    "AMQP": PROTOCOL_HEADER,
    "Pulsar": encode_command(api.CommandConnect(client_version="Pulsar-CPP-v3.7.0", protocol_version=21)),
    "Kafka": _kafka(),
    "RocketMQ 4 remoting": REMOTING,
    "MQTT": bytes.fromhex("101000044d5154540402003c000474657374"),
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
}
LISTENERS = {
    "http": "http://127.0.0.1:1",
    "pulsar": "pulsar://127.0.0.1:2",
    "kafka": "127.0.0.1:3",
    "amqp": "amqp://[::1]:4",
    "rocketmq": "127.0.0.1:5",
}
OWN = {
    "http": {"HTTP"},
    "pulsar": {"Pulsar"},
    "kafka": {"Kafka"},
    "amqp": {"AMQP"},
    "rocketmq": {"HTTP/2", "RocketMQ 4 remoting"},
}
RIGHT = {
    "HTTP": "the HTTP port is 1",
    "HTTP/2": "the RocketMQ (gRPC) port is 5",
    "AMQP": "the AMQP port is 4",
    "Pulsar": "the Pulsar port is 2",
    "Kafka": "the Kafka port is 3",
    "RocketMQ 4 remoting": "the RocketMQ (gRPC) port is 5",
    "MQTT": "this server does not serve MQTT",
    "SSH": "this server does not serve SSH",
}


@pytest.mark.parametrize("protocol", FIRST)
def test_a_protocol_is_known_by_its_first_bytes(protocol: str) -> None:
    assert protocol_of(FIRST[protocol]) == protocol
    assert protocol_of(memoryview(FIRST[protocol])[:2]) in (None, protocol)


@pytest.mark.parametrize("listener", LISTENERS)
def test_each_listener_names_each_other_protocol_and_its_port(listener: str) -> None:
    port = ServedPort(listener, LISTENERS)
    for protocol, first in FIRST.items():
        refusal = port.refusal(first)
        if protocol in OWN[listener]:
            assert refusal is None
            continue
        assert refusal is not None
        assert f"this port (listeners.{listener}) serves " in refusal.what
        if protocol == "TLS":
            assert "the client uses TLS" in refusal.what
            assert "connect without TLS, or set listeners." in str(refusal)
        else:
            assert protocol in refusal.what
            assert refusal.hint == RIGHT[protocol]


def test_a_listener_over_tls_is_named_where_there_is_no_other_one() -> None:
    secure = {"https": "https://127.0.0.1:8443", "kafka": "127.0.0.1:3", "kafka_tls": "127.0.0.1:9093"}
    refusal = ServedPort("kafka", secure).refusal(FIRST["HTTP"])
    assert refusal is not None
    assert refusal.hint == "the HTTPS port is 8443"
    refusal = ServedPort("kafka", secure).refusal(FIRST["TLS"])
    assert refusal is not None
    assert refusal.hint == "the Kafka TLS port is 9093"
    refusal = ServedPort("kafka", {}).refusal(FIRST["AMQP"])
    assert refusal is not None
    assert refusal.hint == "set listeners.amqp to serve it"


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_whose_first_bytes_come_in_pieces_is_not_taken_for_another(listener: str) -> None:
    for protocol in OWN[listener]:
        for size in range(len(FIRST[protocol])):
            assert ServedPort(listener, LISTENERS).refusal(FIRST[protocol][:size]) is None


def test_unknown_bytes_are_left_to_the_protocol() -> None:
    for first in (b"", b"\0", b"\0\0\0\0", b"hello world, hello", bytes(64), b"\xff" * 64):
        assert all(ServedPort(listener, LISTENERS).refusal(first) is None for listener in LISTENERS)


def test_a_client_of_pulsar_is_told_in_its_own_protocol() -> None:
    refusal = ServedPort("kafka", LISTENERS).refusal(FIRST[PULSAR])
    assert refusal is not None
    assert b"the Pulsar port is 2" in answer_to(FIRST[PULSAR], refusal)


# --- a server ---


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("ports")
    made = make_certificate(folder)
    settings = [f"listeners.{name}=127.0.0.1:0" for name in ("https", "kafka_tls")]
    process = UpProcess(folder, *settings, f"tls.certificate={made.file}", f"tls.key={made.key_file}")
    process.start()
    yield process
    process.close()


def _port(up: UpProcess, listener: str) -> int:
    return int(up.addresses[listener].rpartition(":")[2])


def run_weir(*arguments: str) -> Outcome:
    command = [sys.executable, "-m", "weir.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def _said(up: UpProcess, *words: str) -> None:
    for one in words:
        up.wait_said(one)


@pytest.mark.process
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("protocol", ["AMQP", "Kafka", "TLS", "Pulsar", "HTTP/2"])
def test_the_server_logs_it_and_ends_the_connection(up: UpProcess, listener: str, protocol: str) -> None:
    if protocol in OWN[listener] or (listener, protocol) == ("rocketmq", "TLS"):
        pytest.skip("its own protocol")
    with socket.create_connection(("127.0.0.1", _port(up, listener)), timeout=60) as client:
        client.sendall(FIRST[protocol])
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass
    refusal = ServedPort(listener, up.addresses).refusal(FIRST[protocol])
    _said(up, str(refusal))


@pytest.mark.process
@pytest.mark.parametrize("listener", ["pulsar", "kafka", "amqp", "rocketmq"])
def test_a_client_of_http_reads_the_right_port(up: UpProcess, listener: str) -> None:
    answer = requests.get(f"http://127.0.0.1:{_port(up, listener)}/admin/v2/clusters", timeout=60)
    assert answer.status_code == 400
    reason = answer.json()["reason"]
    assert reason.startswith(f"the client uses HTTP, and this port (listeners.{listener}) serves ")
    assert reason.endswith(f"(the HTTP port is {_port(up, 'http')})")


@pytest.mark.process
@pytest.mark.parametrize("listener", ["pulsar", "kafka", "amqp", "rocketmq"])
def test_a_command_says_so(up: UpProcess, listener: str) -> None:
    for command in (["topics", "list"], ["produce", "t", "x"], ["consume", "t"]):
        done = run_weir(*command, "--url", f"http://127.0.0.1:{_port(up, listener)}")
        assert done.code == 1
        assert f"this port (listeners.{listener}) serves " in done.err
        assert f"the HTTP port is {_port(up, 'http')}" in done.err


@pytest.mark.process
@pytest.mark.parametrize("listener", ["http", "kafka", "amqp", "rocketmq"])
def test_a_command_for_pulsars_port_says_so(up: UpProcess, listener: str) -> None:
    done = run_weir("produce", "t", "x", "--url", f"pulsar://127.0.0.1:{_port(up, listener)}")
    assert done.code == 1
    assert "the client uses the Pulsar protocol" in done.err
    assert f"the Pulsar port is {_port(up, 'pulsar')}" in done.err


@pytest.mark.process
def test_tls_and_clear_text_at_the_port_of_the_other(up: UpProcess) -> None:
    done = run_weir("topics", "list", "--url", f"http://127.0.0.1:{_port(up, 'https')}")
    assert "closed the connection (if the port serves TLS, use https://)" in done.err
    _said(up, f"a client uses HTTP without TLS on port {_port(up, 'https')}, which serves TLS only")
    done = run_weir("topics", "list", "--url", f"https://127.0.0.1:{_port(up, 'http')}")
    assert "answered without TLS (use the TLS port of the server, or connect without TLS" in done.err
    assert (done.code, "waiting" in done.err) == (1, False)


@pytest.mark.process
def test_official_clients_at_a_wrong_port_fail(up: UpProcess) -> None:
    client: Any = pulsar.Client(
        f"pulsar://127.0.0.1:{_port(up, 'kafka')}",
        operation_timeout_seconds=5,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t")
    client.close()
    with pytest.raises(KafkaError):
        KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{_port(up, 'pulsar')}", bootstrap_timeout_ms=5_000)
    _said(up, "the client uses the Kafka protocol, and this port (listeners.pulsar) serves the Pulsar protocol")
    _said(up, "the client uses the Pulsar protocol, and this port (listeners.kafka) serves the Kafka protocol")

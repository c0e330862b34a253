"""Access keys, namespaces and TLS, by RocketMQ's own Python client."""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from rocketmq import Credentials
from rocketmq.grpc_protocol import Code, MessagingServiceStub, QueryRouteRequest, Resource
from rocketmq.v5.util import Signature

from weir.broker.security.tokens import access_key_secret, create_secret
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
SECRET = create_secret()


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("weir")
    key, server = folder / "secret.key", make_certificate(folder)
    key.write_bytes(SECRET)
    up = UpProcess(
        folder,
        "auth.authenticate=true",
        "auth.authorise=true",
        "auth.superusers=alice",
        f"auth.token_secret=file:{key}",
        "listeners.rocketmq_tls=127.0.0.1:0",
        f"tls.certificate={server.file}",
        f"tls.key={server.key_file}",
    )
    up.certificate = server.file.read_bytes()  # type: ignore[attr-defined]
    up.start()
    yield up
    up.close()


def key_of(role: str) -> Credentials:
    return Credentials(role, access_key_secret(SECRET, role))


def test_a_client_with_an_access_key_is_its_role(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name, credentials=key_of("alice"))
    producer.send(make(name, b"signed"))
    (found,) = clients.consumer("g", name, credentials=key_of("alice")).receive(16, 60)
    assert found.body == b"signed"


def test_access_keys_are_had_of_the_server_and_are_passwords_too(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    known = access_key_secret(SECRET, "alice")
    made = asked(weir, "alice", known)
    assert (made["accessKey"], made["secretKey"] != known) == ("alice", True)
    producer = clients.producer(name, credentials=Credentials("alice", made["secretKey"]))
    producer.send(make(name, b"signed"))
    assert asked(weir, "alice", made["secretKey"]) == made
    with pytest.raises(HTTPError) as refused:
        asked(weir, "bob", access_key_secret(SECRET, "bob"))
    assert refused.value.code in (401, 403)


def asked(weir: UpProcess, role: str, password: str) -> Any:
    """The access key of alice, for who says so."""
    said = b64encode(f"{role}:{password}".encode()).decode()
    headers = {"authorization": f"Basic {said}"}
    request = Request(f"{weir.http_url}/admin/weir/v1/access-keys/alice", headers=headers)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        (Credentials("alice", "wrong"), Code.UNAUTHORIZED),
        (Credentials(), Code.UNAUTHORIZED),
        (key_of("bob"), Code.FORBIDDEN),
    ],
)
def test_who_signs_wrongly_or_may_not_is_told_so(clients: Any, name: str, credentials: Any, code: int) -> None:
    with grpc.insecure_channel(clients.endpoint) as channel:
        assert _route(clients, channel, name, credentials).status.code == code


def test_calls_come_over_tls_too(weir: UpProcess, clients: Any, name: str) -> None:
    trusted = grpc.ssl_channel_credentials(weir.certificate)  # type: ignore[attr-defined]
    with grpc.secure_channel(weir.addresses["rocketmq_tls"], trusted) as channel:
        response = _route(clients, channel, name, key_of("alice"))
    (queue,) = response.message_queues
    assert response.status.code == Code.OK
    told = queue.broker.endpoints.addresses[0]
    assert f"{told.host}:{told.port}" == weir.addresses["rocketmq_tls"]


def test_a_namespace_is_a_namespace(weir: UpProcess, clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name, credentials=key_of("alice"), namespace="default")
    producer.send(make(name, b"there"))
    consumer = clients.consumer("g", name, credentials=key_of("alice"), namespace="public/default")
    assert [one.body for one in consumer.receive(16, 60)] == [b"there"]
    with grpc.insecure_channel(clients.endpoint) as channel:
        response = _route(clients, channel, name, key_of("alice"), "nowhere")
    assert response.status.code == Code.TOPIC_NOT_FOUND


def _route(clients: Any, channel: Any, topic: str, credentials: Credentials, namespace: str = "") -> Any:
    metadata = Signature.metadata(clients.configuration(credentials=credentials), "a client")
    request = QueryRouteRequest(topic=Resource(name=topic, resource_namespace=namespace))
    return MessagingServiceStub(channel).QueryRoute(request, metadata=metadata, timeout=60)

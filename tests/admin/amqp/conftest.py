"""A whole Weir with listeners for AMQP and HTTP, and the management API as its users call it."""

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True)
class Api:
    """Calls below `/api`, as one user."""

    weir: Any
    user: str | None = "guest"
    password: str = "guest"

    def as_user(self, user: str | None, password: str = "") -> "Api":
        return Api(self.weir, user, password)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        address = self.weir.up.addresses["http"]
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        headers = {}
        if self.user is not None:
            said = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["authorization"] = f"Basic {said}"
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, f"/api/{path}", data, headers)
        response = connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        connection.close()
        return answer

    def do(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, path, body)
        assert answer.status in (200, 201, 204), f"{method} {path}: {answer.status} {answer.body[:500]!r}"
        return answer.json

    def get(self, path: str) -> Any:
        return self.do("GET", path)

    def publish(self, vhost: str, exchange: str, key: str, payload: str = "x", **properties: Any) -> bool:
        body = {
            "properties": properties,
            "routing_key": key,
            "payload": payload,
            "payload_encoding": "string",
        }
        routed: bool = self.do("POST", f"exchanges/{vhost}/{exchange}/publish", body)["routed"]
        return routed

    def take(self, vhost: str, queue: str, mode: str = "ack_requeue_false", count: int = 10, **more: Any) -> Any:
        return self.do("POST", f"queues/{vhost}/{queue}/get", {"ackmode": mode, "count": count, **more})


@pytest.fixture(scope="module")
def api(start_weir: Callable[..., Any]) -> Api:
    """Of a Weir that lets everybody do everything."""
    return Api(start_weir("listeners.amqp=127.0.0.1:0"))


@pytest.fixture(scope="session")
def api_of() -> type[Api]:
    return Api


@pytest.fixture
def vhost(api: Api, unique: str) -> Iterator[str]:
    api.do("PUT", f"vhosts/{unique}")
    yield unique
    api.ask("DELETE", f"vhosts/{unique}")

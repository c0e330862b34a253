"""Scenarios by name, and what each of them has: names of its own, connections, the management API."""

import base64
import json
import ssl
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.gateway.amqp.behaviour.raw import Raw
from tests.gateway.amqp.behaviour.talk import Channel, Talk, plain, until

Scenario = Callable[["Session"], Any]
SCENARIOS: dict[str, Scenario] = {}
#: Who signed the certificates.
AUTHORITY = "localhost"
#: Scenarios that concern all of a broker.
ALONE = "blocking."
#: Most of the time they wait.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Broker:
    """Where it is: AMQP as `host:port`, and its management API as a URL ("" if it has none)."""

    amqp: str
    management: str = ""
    user: str = "guest"
    password: str = "guest"
    #: AMQP over TLS, as `host:port`, and the folder with the authority's certificate and those of clients.
    amqps: str = ""
    certificates: Path | None = None
    #: RabbitMQ's own command line, if it is one.
    ctl: Callable[..., str] | None = None


def scenario(function: Scenario) -> Scenario:
    """Enter it by its module's and its own name."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    SCENARIOS[name] = function
    return function


class Session:
    """One run of one scenario."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.token = f".{uuid4().hex[:10]}"
        self._open: list[Any] = []
        self._policies: list[str] = []
        self._users: list[str] = []
        self._vhosts: list[str] = []

    def name(self, name: str) -> str:
        """A name that nobody else uses; in answers it is `name` again."""
        return name + self.token

    def talk(self, **options: Any) -> Talk:
        talk = Talk(self.broker.amqp, **options)
        self._open.append(talk)
        return talk

    def channel(self) -> Channel:
        """A channel of a connection of its own."""
        return self.talk().channel()

    def raw(self, **options: Any) -> Raw:
        """A client that hides nothing, with its connection open."""
        raw = self.bare()
        raw.open(**options)
        return raw

    def bare(self) -> Raw:
        """The same, of which nothing was said yet."""
        raw = Raw(self.broker.amqp)
        self._open.append(raw)
        return raw

    def secure(self, name: str | None) -> Raw:
        """A client over TLS that shows the certificate of this name; None: none."""
        folder = self.broker.certificates
        assert folder is not None
        context = ssl.create_default_context(cafile=str(folder / f"{AUTHORITY}.pem"))
        if name is not None:
            context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
        raw = Raw(self.broker.amqps, context)
        self._open.append(raw)
        return raw

    @contextmanager
    def without_room(self, vhost: str) -> Iterator[None]:
        """The broker wants nothing more to be published, in this vhost at least: a RabbitMQ is out of memory, a
        Weir has a low rate."""
        if self.broker.ctl is not None:
            self.broker.ctl("set_vm_memory_high_watermark", "0.000001")
            try:
                yield
            finally:
                self.broker.ctl("set_vm_memory_high_watermark", "0.4")
            return
        rate = {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1 << 20}
        path = f"{self.broker.management}/admin/v2/namespaces/public/{vhost}/publishRate"
        request = urllib.request.Request(path, json.dumps(rate).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=30).close()
        yield

    def manage(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask the management API: status and answer. `path` begins behind `/api/`."""
        request = urllib.request.Request(
            f"{self.broker.management}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        login = f"{self.broker.user}:{self.broker.password}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = answer.read()
                return answer.status, json.loads(said) if said else None
        except urllib.error.HTTPError as refused:
            said = refused.read()
            return refused.code, json.loads(said) if said else None

    def policy(
        self, name: str, pattern: str, definition: dict[str, Any], *, apply_to: str = "queues", priority: int = 0
    ) -> int:
        """Set a policy on `/`, until the end of the scenario; the status."""
        self._policies.append(name)
        body = {"pattern": pattern, "definition": definition, "apply-to": apply_to, "priority": priority}
        return self.manage("PUT", f"policies/%2F/{urllib.parse.quote(name, safe='')}", body)[0]

    def clear_policy(self, name: str) -> int:
        return self.manage("DELETE", f"policies/%2F/{urllib.parse.quote(name, safe='')}")[0]

    def policy_of(self, queue: str, name: str | None) -> Any:
        """Wait until this is the policy of the queue."""

        def known() -> bool:
            status, found = self.manage("GET", f"queues/%2F/{urllib.parse.quote(queue, safe='')}")
            return status == 200 and found.get("policy") == name

        return until(known)

    def user(self, name: str, *, configure: str = "", write: str = "", read: str = "") -> None:
        """Make a user, whose password is `secret`, until the end of the scenario."""
        self._users.append(name)
        self.manage("PUT", f"users/{name}", {"password": "secret", "tags": ""})
        rights = {"configure": configure, "write": write, "read": read}
        self.manage("PUT", f"permissions/%2F/{name}", rights)

    def vhost(self, name: str) -> str:
        """Make a vhost that `guest` may do everything in, until the end of the scenario; its name."""
        host = self.name(name)
        self._vhosts.append(host)
        self.manage("PUT", f"vhosts/{host}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.manage("PUT", f"permissions/{host}/{self.broker.user}", everything)
        return host

    def close(self) -> None:
        for one in self._open:
            one.close()
        for name in self._users:
            self.manage("DELETE", f"users/{name}")
        for name in self._policies:
            self.clear_policy(name)
        for name in self._vhosts:
            self.manage("DELETE", f"vhosts/{name}")


def answer(name: str, broker: Broker) -> Any:
    """What the broker does in this scenario."""
    session = Session(broker)
    try:
        found = SCENARIOS[name](session)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        lines = [f"{frame.name}:{frame.lineno}" for frame in where if "behaviour" in frame.filename]
        found = f"failed at {' '.join(lines)}: {type(error).__name__}: {error}"
    finally:
        try:
            session.close()
        except Exception as error:
            found = f"could not be closed: {type(error).__name__}: {error}"
    return plain(found, session.token)


def answers(names: list[str], broker: Broker) -> dict[str, Any]:
    """Those of several scenarios, a few at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        shared = [name for name in names if not name.startswith(ALONE)]
        found = dict(zip(shared, pool.map(lambda name: answer(name, broker), shared), strict=True))
    return found | {name: answer(name, broker) for name in names if name not in found}

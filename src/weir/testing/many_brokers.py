"""Several brokers over one storage in this process, on a thread of their own, each with its own real listeners."""

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from weir.admin.http import HttpSettings, Request
from weir.admin.peer_calls import AdminPeerHandler
from weir.admin.routes import AdminContext, ServiceUrls, admin_routes
from weir.admin.server import AdminServer
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.broker import Broker
from weir.broker.peers.settings import PeerLinks, PeerServerSettings
from weir.gateway.pulsar.settings import PulsarSettings, SessionLimits
from weir.model.topics import DEFAULT_NAMESPACE
from weir.runtime.real import real_runtime
from weir.server.addresses import Address
from weir.server.compose import ComposedBroker, Composition, compose_broker
from weir.server.config_load import load
from weir.server.config_parts import storage_settings
from weir.server.listening import BoundNetwork
from weir.server.storage import LocalStorage
from weir.testing.loop_thread import Call, LoopThread
from weir.wire.peer.administration import AdminCall

_TIMEOUT_S = 60.0
#: A leader is elected; a test that wants a round asks for it.
_NO_ROUNDS_S = 86_400.0
_LOOPBACK = Address("127.0.0.1", 0)
_SCHEMES = {"pulsar": "pulsar://", "http": "http://", "peer": ""}


@dataclass
class OneBroker:
    """A broker of several."""

    name: str
    listeners: dict[str, str]
    composed: ComposedBroker
    stack: AsyncExitStack = field(repr=False)

    @property
    def url(self) -> str:
        return self.listeners["pulsar"]

    @property
    def http(self) -> str:
        return self.listeners["http"]

    @property
    def broker(self) -> Broker:
        return self.composed.broker

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """One request, sent nowhere else: status, headers, body. Paths without a slash are below `/admin/v2`."""
        host, _, port = self.http.removeprefix("http://").rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
        headers = {} if body is None else {"content-type": "application/json"}
        target = path if path.startswith("/") else f"/admin/v2/{path}"
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return answer

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """One request that is served here: what is answered, as JSON."""
        status, _, said = self.ask(method, path, body)
        assert status in (200, 204), f"{method} {path}: {status} {said[:300]!r}"
        return json.loads(said) if said else None


class ManyBrokers:
    """`start`, then `stop`. Whatever is a coroutine runs on the brokers' loop, by `call`."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._loop = LoopThread()
        config = load(assignments=[f"data={folder}", "storage.low_water_bytes=0"]).config
        self._storage = LocalStorage(real_runtime(), storage_settings(config))
        self._names = names
        self.brokers: dict[str, OneBroker] = {}

    def __getitem__(self, name: str) -> OneBroker:
        return self.brokers[name]

    def call(self, work: Call) -> Any:
        """Run a coroutine on the brokers' loop, and wait for it."""
        return self._loop.call(work, _TIMEOUT_S)

    def start(self) -> "ManyBrokers":
        self.call(self._storage.start)
        for name in self._names:
            self.add(name)
        self.call(self._spread)
        return self

    async def _spread(self) -> None:
        """Every broker has something of the default namespace: its bundles go round. Four partitions that follow
        one another are always in four bundles, so a partitioned topic is on all of the first four brokers."""
        members = list(self.brokers.values())
        while any(len(member.broker.brokers()) < len(members) for member in members):
            await real_runtime().clock.sleep(0.01)
        for at, bundle in enumerate(members[0].broker.bundles.of(DEFAULT_NAMESPACE)):
            moves = [member.composed.bundles for member in members if member.composed.bundles is not None]
            chosen = moves[0].ownership.chosen(bundle.name, None)
            first = next(found for found in moves if found.ownership.me.broker_id == chosen)
            await first.ownership.take(bundle.name)
            await first.hand_over(bundle.name, members[at % len(members)].name)
            while any(found.info(bundle.name).owner != members[at % len(members)].name for found in moves):
                await real_runtime().clock.sleep(0.01)

    def add(self, name: str) -> OneBroker:
        """One more broker."""
        found: OneBroker = self.call(lambda: self._broker(name))
        return found

    def end(self, name: str) -> None:
        """End a broker in order."""
        self.call(self.brokers.pop(name).stack.aclose)

    def stop(self) -> None:
        for name in list(self.brokers):
            self.end(name)
        self.call(self._storage.close)
        self._loop.stop()

    async def _broker(self, name: str) -> OneBroker:
        stack = AsyncExitStack()
        net = BoundNetwork(real_runtime().net)
        runtime = replace(real_runtime(), net=net)
        bound = {kind: await net.bind(_LOOPBACK) for kind in _SCHEMES}
        listeners = {kind: f"{_SCHEMES[kind]}{address}" for kind, address in bound.items()}
        how = Composition(name, listeners, peers=PeerLinks(), balance=BalanceSettings(interval_s=_NO_ROUNDS_S))
        composed = await compose_broker(runtime, self._storage.meta, self._storage.ledgers, how, stack)
        settings = PulsarSettings(port=bound["pulsar"].port, limits=SessionLimits(linger_s=0.1))
        await composed.serve_pulsar(replace(settings, sweep_interval_s=0.05))
        context = AdminContext(
            runtime.clock,
            composed.broker,
            composed.registry,
            composed.schemas,
            composed.authoriser,
            ServiceUrls(listeners),
            broker_id=name,
            ask_peer=composed.peers.ask,
            balance=composed.balance,
        )
        routes = admin_routes(context)
        composed.peer_handlers.on(AdminCall, AdminPeerHandler(routes).perform)
        await composed.serve_peers(PeerServerSettings(port=bound["peer"].port, close_grace_s=0.1))
        server = AdminServer(runtime, HttpSettings(port=bound["http"].port), routes, _anybody)
        await server.start()
        stack.push_async_callback(server.close)
        one = self.brokers[name] = OneBroker(name, listeners, composed, stack)
        return one


async def _anybody(request: Request) -> str:
    return ""

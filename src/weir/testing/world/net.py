"""The simulated network: who listens where, how connections come about, and what partitions do to them.

`SimNetwork` is the one network of a world; scenarios turn its knobs (`set_faults`, `partition`, `block`,
`heal`). `NodeNetwork` is what one incarnation of a node sees of it through `weir.runtime`. A node's name is its
host name; `localhost` and loopback addresses mean the node itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from ssl import SSLContext

from weir.model.errors import AddressInUseError, ConnectFailedError, ConnectionLostError
from weir.testing.world.connection import Pipe, SimConnection, Wire
from weir.testing.world.incarnation import Incarnation
from weir.testing.world.links import Link, Links, NetFaults
from weir.testing.world.loop import SimLoop

__all__ = ["NetFaults", "NodeNetwork", "SimListener", "SimNetwork"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")
_FIRST_FREE_PORT = 49152
_BACKLOG = 128


class SimListener:
    """A bound port of one incarnation."""

    def __init__(self, net: SimNetwork, owner: Incarnation, port: int) -> None:
        self.host = owner.node
        self.port = port
        self.owner = owner
        self._net = net
        self._backlog: deque[SimConnection] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def accept(self) -> SimConnection:
        if not self.owner.alive:
            await self.owner.gone()
        while not self._backlog:
            if self._closed:
                raise ConnectionLostError(f"the listener on {self.host}:{self.port} is closed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake_one()  # whoever else waits must not miss the connection this one was woken for
                raise
        return self._backlog.popleft()

    def offer(self, connection: SimConnection) -> bool:
        """Queue a new connection for `accept`, unless too many wait."""
        if len(self._backlog) >= _BACKLOG:
            return False
        self._backlog.append(connection)
        self._wake_one()
        return True

    def close(self) -> None:
        if not self._closed and self.owner.alive:
            self._closed = True
            self._net.unbind(self)
            for connection in self._backlog:
                connection.abort()
            self._backlog.clear()
            while self._waiters:
                self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class SimNetwork(Links):
    """Every link, listener and connection of a world."""

    def __init__(self, loop: SimLoop, rng: Callable[[str], Random], note: Callable[[str, str, str], None]) -> None:
        super().__init__(rng, note)
        self._loop = loop
        self._context = Context()
        self._wire = Wire(loop, self._context, note, self._forget)
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._connections: dict[int, tuple[SimConnection, SimConnection]] = {}
        self._count = 0
        self._next_port: dict[str, int] = {}
        #: Nodes by name; true while nothing on the host answers, not even with a refusal.
        self._silent: dict[str, bool] = {}

    # --- for nodes ----------------------------------------------------------------------------------------

    def node_up(self, node: str) -> None:
        self._silent[node] = False

    def node_down(self, incarnation: Incarnation, *, power_loss: bool) -> None:
        """Free the incarnation's ports, and let its peers find out."""
        for address, listener in list(self._listeners.items()):
            if listener.owner is incarnation:
                del self._listeners[address]
        # A host without power does not answer; one that is up again without its process refuses.
        self._silent[incarnation.node] = power_loss and self._rng_of(incarnation.node).random() < 0.5
        for ends in list(self._connections.values()):
            for end in ends:
                if end.owner is incarnation:
                    end.owner_died(power_loss=power_loss)

    def break_connections(self, one: str, other: str) -> None:
        """Lose every connection between two nodes now."""
        for ends in list(self._connections.values()):
            if {ends[0].owner.node, ends[1].owner.node} == {one, other}:
                ends[0].lose("broken on purpose")

    def _rng_of(self, node: str) -> Random:
        return self.link(node, node).rng

    # --- listening ----------------------------------------------------------------------------------------

    def bind(self, owner: Incarnation, port: int) -> SimListener:
        if port == 0:
            port = self._free_port(owner.node)
        if (owner.node, port) in self._listeners:
            raise AddressInUseError(f"{owner.node}:{port} is taken")
        listener = self._listeners[owner.node, port] = SimListener(self, owner, port)
        self._note(owner.node, "net-listen", str(port))
        return listener

    def unbind(self, listener: SimListener) -> None:
        self._listeners.pop((listener.host, listener.port), None)

    def _free_port(self, node: str) -> int:
        port = self._next_port.get(node, _FIRST_FREE_PORT)
        while (node, port) in self._listeners:
            port += 1
        self._next_port[node] = port + 1
        return port

    # --- connecting ---------------------------------------------------------------------------------------

    async def connect(self, owner: Incarnation, host: str, port: int, timeout_s: float) -> SimConnection:
        address = f"{host}:{port}"
        target = owner.node if host in _LOOPBACK else host
        outcome: asyncio.Future[SimConnection] = self._loop.create_future()
        self._note(owner.node, "net-connect", f"{target}:{port}")

        def fail(why: str) -> None:
            if not outcome.done():
                outcome.set_exception(ConnectFailedError(f"cannot connect to {address}: {why}"))

        timer = self._loop.call_later(timeout_s, fail, "timed out", context=self._context)
        there, back = self.link(owner.node, target), self.link(target, owner.node)
        self._later(there, lambda: self._knock(owner, port, outcome, fail, there=there, back=back))
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                outcome.result().abort()
            raise
        finally:
            timer.cancel()

    def _later(self, link: Link, call: Callable[[], None]) -> None:
        self._loop.call_at(link.arrival(self._loop.time()), call, context=self._context)

    def _knock(
        self,
        owner: Incarnation,
        port: int,
        outcome: asyncio.Future[SimConnection],
        fail: Callable[[str], None],
        *,
        there: Link,
        back: Link,
    ) -> None:
        """The request to connect arrives at the other side."""
        if there.blocked or outcome.done() or not owner.alive:
            return
        listener = self._listeners.get((there.target, port))
        if self._silent.get(there.target, False):
            return
        if listener is None or there.rng.random() < there.faults.refuse_chance:
            self._later(back, lambda: None if back.blocked else fail("refused"))
            return
        client, server = self._join(owner, listener.owner, port, there, back)
        if not listener.offer(server):
            client.lose("backlog full")
            return
        self._later(back, lambda: self._answer(back, outcome, client))

    def _join(
        self, owner: Incarnation, other: Incarnation, port: int, there: Link, back: Link
    ) -> tuple[SimConnection, SimConnection]:
        self._count += 1
        label = f"c{self._count}"
        client = SimConnection(self._wire, owner, self._count, f"{other.node}:{port}")
        server = SimConnection(self._wire, other, self._count, f"{owner.node}:{self._free_port(owner.node)}")
        request = Pipe(self._wire, there, f"{label}>", client, server)
        response = Pipe(self._wire, back, f"{label}<", server, client)
        client.join(server, request, response)
        server.join(client, response, request)
        self._connections[self._count] = (client, server)
        self._note(other.node, "net-accept", f"{label} {owner.node}")
        return client, server

    def _answer(self, back: Link, outcome: asyncio.Future[SimConnection], client: SimConnection) -> None:
        """The acceptance arrives back, or does not: then the other side has a connection to nobody."""
        if back.blocked or outcome.done() or not client.owner.alive:
            client.lose("handshake lost")
        else:
            outcome.set_result(client)

    # --- partitions ---------------------------------------------------------------------------------------

    def _blocking_changed(self, link: Link) -> None:
        for number, (end, _) in list(self._connections.items()):
            if not end.crosses(link):
                continue
            if link.blocked:
                delay = link.faults.keepalive_s * (1.0 + 0.5 * link.rng.random())
                self._loop.call_later(delay, self._keepalive, number, link, link.cut, context=self._context)
            else:
                end.unblocked(link)

    def _keepalive(self, number: int, link: Link, cut: int) -> None:
        ends = self._connections.get(number)
        if ends is not None and link.blocked and link.cut == cut:
            ends[0].lose("keepalive")

    def _forget(self, number: int) -> None:
        self._connections.pop(number, None)


class NodeNetwork:
    """What one incarnation of a node sees of the network. TLS is taken as given: bytes are bytes."""

    def __init__(self, net: SimNetwork, owner: Incarnation) -> None:
        self._net = net
        self._owner = owner

    @property
    def descriptor_waits(self) -> int:
        return 0

    async def connect(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: SSLContext | None = None
    ) -> SimConnection:
        if not self._owner.alive:
            await self._owner.gone()
        return await self._net.connect(self._owner, host, port, timeout_s)

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        reserve: bool = False,
        clear_too: bool = False,
    ) -> SimListener:
        if not self._owner.alive:
            await self._owner.gone()
        return self._net.bind(self._owner, port)

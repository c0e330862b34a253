"""Admin calls between brokers.

A call on several topics or bundles becomes one call for each of them, which its owner executes. The calling broker
authenticates the caller; the called broker authorizes the role.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, quote

import msgspec

from weir.broker.api.broker import Broker, Owner
from weir.model.check import check
from weir.model.errors import NotOwnerError, PeerBusyError, PeerUnavailableError, TopicClosedError, WeirError
from weir.model.topics import TopicName
from weir.rest.http import Request, Response
from weir.rest.responses import answered, forms_of, refusal, response, status_of
from weir.rest.routes import Call, RefusedError, Route, Router
from weir.runtime.interfaces import Clock
from weir.wire.peer.calls import AdminAnswer, AdminCall

#: The peer of forwarded requests in the log.
_PEER = "another broker"

#: Executes a call on the broker of this id; PeerError if it cannot be reached.
AskPeer = Callable[[str, AdminCall], Awaitable[AdminAnswer]]


async def nobody(broker_id: str, call: AdminCall) -> AdminAnswer:
    """Substitute for a broker without peers."""
    raise PeerUnavailableError(f"this broker has no connection to broker {broker_id}", sent=False)


class AdminPeerHandler:
    """Executes the calls of other brokers."""

    def __init__(self, routes: list[Route]) -> None:
        self._router = Router(routes)
        self._forms = forms_of(routes)

    async def perform(self, call: AdminCall) -> AdminAnswer:
        """Execute a call. Status 307 without a location: this broker is not the owner, either; the body has the
        error."""
        done = await self._perform(call)
        return AdminAnswer(done.status, done.body, done.content_type, done.headers)

    async def _perform(self, call: AdminCall) -> Response:
        target = f"{call.path}?{call.query}" if call.query else call.path
        query = parse_qs(call.query, keep_blank_values=True)
        request = Request(call.method, call.path, query, call.headers, _PEER, target, body=call.body)
        found = self._router.find(call.method, call.path)
        if isinstance(found, list):
            return refusal(404, f"this broker does not support {call.method} {call.path}")
        route, values = found

        async def act() -> Response:
            try:
                return response(await route.action(route.call(request, values, call.role)))
            except NotOwnerError as elsewhere:
                return Response(307, str(elsewhere).encode())

        return await answered(request, act(), forms=self._forms)


log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: Concurrent calls to owners for one call.
_AT_ONCE = 16
#: How long to look for the owner during a handover or after a broker failure; longer than the lease of a failed
#: broker.
_PATIENCE_S = 15.0
_PAUSE_S = 0.1
_MOVING = (NotOwnerError, TopicClosedError, PeerUnavailableError, PeerBusyError)


@dataclass(frozen=True, slots=True)
class CallTarget(Generic[K]):
    """One target of a call: its path parameters, and its current owner."""

    key: K
    values: Mapping[str, str]
    owner: Callable[[], Owner]


def topic_target(broker: Broker, topic: TopicName) -> CallTarget[TopicName]:
    return CallTarget(topic, {"topic": topic.local_with_partition}, lambda: broker.owner_now(topic))


@dataclass(frozen=True, slots=True)
class PartCalls:
    """Calls the owners of several targets and collects their results."""

    clock: Clock
    ask: AskPeer
    patience_s: float = _PATIENCE_S

    async def each(
        self,
        call: Call,
        targets: Sequence[CallTarget[K]],
        *,
        route: Route | None = None,
        fine: Collection[int] = (),
    ) -> dict[K, Any]:
        """Execute the call (or that of another route, with the same parameters) on each target, and return the
        successful results. After all have answered, a refusal is raised; one with a status in `fine` only if all
        refused."""
        wanted = route or call.route
        check(wanted is not None, "a call knows its route")
        turn = asyncio.Semaphore(_AT_ONCE)
        outcomes: dict[K, Any] = {}

        async def one(target: CallTarget[K]) -> None:
            async with turn:
                try:
                    outcomes[target.key] = await self._one(call, wanted, target)  # type: ignore[arg-type]
                except WeirError as refused:
                    outcomes[target.key] = refused

        async with asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(one(target))
        return _those_that_did([target.key for target in targets], outcomes, fine)

    async def _one(self, call: Call, route: Route, target: CallTarget[K]) -> Any:
        request, path = _for_one(call, route, target.values)
        deadline = self.clock.monotonic() + self.patience_s
        while True:
            owner = target.owner()
            try:
                if owner.here:
                    return await route.action(route.call(request, path, call.role))
                return await self._ask(owner, call.role, route, request)
            except _MOVING as moving:
                if self.clock.monotonic() > deadline:
                    raise
                log.info("retrying %s %s: %s", request.method, request.path, moving)
            await self.clock.sleep(_PAUSE_S)

    async def _ask(self, owner: Owner, role: str, route: Route, request: Request) -> Any:
        query = request.target.partition("?")[2]
        answer = await self.ask(
            owner.broker_id, AdminCall(role, request.method, request.path, query, request.body)
        )
        if answer.status == 307:
            raise NotOwnerError(answer.body.decode(errors="replace"))
        if answer.status >= 300:
            raise RefusedError(answer.status, _reason(answer.body))
        return msgspec.json.decode(answer.body, type=route.answer) if answer.body else None


def _for_one(call: Call, route: Route, of: Mapping[str, str]) -> tuple[Request, dict[str, str]]:
    """The call as a request for one target."""
    said = {**{name: str(value) for name, value in call.path.items()}, **of}
    values = {name: said[name] for name in route.parameters}
    path = route.path.format(**{name: quote(value, safe="") for name, value in values.items()})
    query = call.request.target.partition("?")[2]
    target = f"{path}?{query}" if query else path
    return replace(call.request, method=route.method, path=path, target=target), values


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["reason"])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
        return "another broker refused the call"


def _those_that_did(keys: Sequence[K], outcomes: Mapping[K, Any], fine: Collection[int]) -> dict[K, Any]:
    refusals = [outcomes[key] for key in keys if isinstance(outcomes[key], WeirError)]
    done = {key: outcomes[key] for key in keys if not isinstance(outcomes[key], WeirError)}
    bad = [refused for refused in refusals if status_of(refused) not in fine]
    if bad or (refusals and not done):
        raise (bad or refusals)[0]
    return done

"""A call about many topics, or many bundles, is one on each of them, done by the broker that has it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from weir.admin.http import Request
from weir.admin.peer_calls import AskPeer
from weir.admin.refusals import status_of
from weir.admin.routing import Call, RefusedError, Route
from weir.broker.api import Broker, Owner
from weir.model.check import check
from weir.model.errors import NotOwnerError, PeerBusyError, PeerUnavailableError, TopicClosedError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.wire.peer.administration import AdminCall

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: Calls that are under way at the same time for one call.
_AT_ONCE = 16
#: A topic may be on its way to another broker, or its broker may just have died: so long it is looked for, which
#: is longer than others believe in a dead broker.
_PATIENCE_S = 15.0
_PAUSE_S = 0.1
_MOVING = (NotOwnerError, TopicClosedError, PeerUnavailableError, PeerBusyError)


@dataclass(frozen=True, slots=True)
class CallTarget(Generic[K]):
    """One of several things that a call is about: what of the path names it, and who has it now."""

    key: K
    values: Mapping[str, str]
    owner: Callable[[], Owner]


def topic_target(broker: Broker, topic: TopicName) -> CallTarget[TopicName]:
    return CallTarget(topic, {"topic": topic.local_with_partition}, lambda: broker.owner_now(topic))


@dataclass(frozen=True, slots=True)
class PartCalls:
    """Finds the brokers, asks them, and puts together what they say."""

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
        """Do the call (or the one of another route, with the same parameters) on each of them; what those answered
        that did not refuse. A refusal is raised once all have answered; one with a status in `fine` only if all
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
                log.info("%s %s is tried again: %s", request.method, request.path, moving)
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
    """The call as a request about one thing."""
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
        return "another broker refused it"


def _those_that_did(keys: Sequence[K], outcomes: Mapping[K, Any], fine: Collection[int]) -> dict[K, Any]:
    refusals = [outcomes[key] for key in keys if isinstance(outcomes[key], WeirError)]
    done = {key: outcomes[key] for key in keys if not isinstance(outcomes[key], WeirError)}
    bad = [refused for refused in refusals if status_of(refused) not in fine]
    if bad or (refusals and not done):
        raise (bad or refusals)[0]
    return done

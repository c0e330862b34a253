"""A call on a partitioned topic is one on each of its partitions, each done by the broker that has it."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import msgspec

from weir.admin.http import Request
from weir.admin.peer_calls import AskPeer, PeerCall
from weir.admin.refusals import status_of
from weir.admin.routing import Call, RefusedError, Route
from weir.broker.api import Broker, Owner
from weir.model.check import check
from weir.model.errors import NetworkError, NotOwnerError, TopicClosedError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: Calls that are under way at the same time for one call.
_AT_ONCE = 16
#: A topic may be on its way to another broker, or its broker may just have died: so long it is looked for, which
#: is longer than others believe in a dead broker.
_PATIENCE_S = 15.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class PartCalls:
    """Finds the brokers, asks them, and puts together what they say."""

    clock: Clock
    broker: Broker
    ask: AskPeer

    async def each(
        self, call: Call, parts: Sequence[TopicName], *, route: Route | None = None, fine: Collection[int] = ()
    ) -> dict[TopicName, Any]:
        """Do the call (or the one of another route, with the same parameters) on each of the topics; what those
        answered that did not refuse. A refusal is raised once all have answered; one with a status in `fine` only
        if all refused."""
        wanted = route or call.route
        check(wanted is not None, "a call knows its route")
        turn = asyncio.Semaphore(_AT_ONCE)
        outcomes: dict[TopicName, Any] = {}

        async def one(part: TopicName) -> None:
            async with turn:
                try:
                    outcomes[part] = await self._one(call, wanted, part)  # type: ignore[arg-type]
                except WeirError as refused:
                    outcomes[part] = refused

        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(one(part))
        return _those_that_did(parts, outcomes, fine)

    async def _one(self, call: Call, route: Route, part: TopicName) -> Any:
        request, path = _for_part(call, route, part)
        deadline = self.clock.monotonic() + _PATIENCE_S
        while True:
            owner = self.broker.owner_now(part)
            try:
                if owner.here:
                    return await route.action(route.call(request, path, call.role))
                return await self._ask(owner, call.role, route, request)
            except (NotOwnerError, NetworkError, TopicClosedError) as moving:
                if self.clock.monotonic() > deadline:
                    raise
                log.info("%s %s is tried again: %s", request.method, request.path, moving)
            await self.clock.sleep(_PAUSE_S)

    async def _ask(self, owner: Owner, role: str, route: Route, request: Request) -> Any:
        call = PeerCall(role, request.method, request.target, request.body)
        answer = await self.ask(owner.broker_id, call)
        if answer.status == 307:
            raise NotOwnerError(answer.body.decode(errors="replace"))
        if answer.status >= 300:
            raise RefusedError(answer.status, _reason(answer.body))
        return msgspec.json.decode(answer.body, type=route.answer) if answer.body else None


def _for_part(call: Call, route: Route, part: TopicName) -> tuple[Request, dict[str, str]]:
    """The call as a request about one partition."""
    values = {**{name: str(value) for name, value in call.path.items()}, "topic": part.local_with_partition}
    values = {name: values[name] for name in route.parameters}
    path = route.path.format(**{name: quote(value, safe="") for name, value in values.items()})
    query = call.request.target.partition("?")[2]
    target = f"{path}?{query}" if query else path
    return replace(call.request, method=route.method, path=path, target=target), values


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["reason"])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
        return "another broker refused it"


def _those_that_did(
    parts: Sequence[TopicName], outcomes: dict[TopicName, Any], fine: Collection[int]
) -> dict[TopicName, Any]:
    refusals = [outcomes[part] for part in parts if isinstance(outcomes[part], WeirError)]
    done = {part: outcomes[part] for part in parts if not isinstance(outcomes[part], WeirError)}
    bad = [refused for refused in refusals if status_of(refused) not in fine]
    if bad or (refusals and not done):
        raise (bad or refusals)[0]
    return done

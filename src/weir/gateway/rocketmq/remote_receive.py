"""Receives from the owner of a queue: this broker, another one, or several at once for lite topics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from weir.broker.api.broker import Owner
from weir.gateway.rocketmq.call import Call
from weir.gateway.rocketmq.errors import MOVED, Refused
from weir.gateway.rocketmq.forwarding import hand_on
from weir.gateway.rocketmq.remote_polls import Key
from weir.model.errors import PeerBusyError, PeerUnavailableError, WeirError
from weir.model.topics import TopicName
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import set_ms

#: How long one poll waits at another broker, in seconds; then the owner is looked up again.
_POLL_S = 2.0
_PAUSE_S = 0.1
_LOOK_S = 0.01
_PASSING = (*MOVED, PeerUnavailableError, PeerBusyError)


class Receiving:
    """One receive of a client. `here` receives from this broker, and waits for the given seconds."""

    def __init__(self, call: Call, request: Any, topic: TopicName, group: str) -> None:
        self._call = call
        self._request = request
        self._key = (call.client_id, str(topic), group)
        self._services = call.session.services

    async def of_queue(
        self, place: Callable[[], Awaitable[Owner]], here: Callable[[float], Awaitable[list[Any]]], wait_s: float
    ) -> list[Any]:
        """Receive from one queue. `place` returns the current owner."""

        async def parts() -> tuple[bool, dict[str, Sequence[str]]]:
            owner = await place()
            return owner.here, {} if owner.here or not owner.broker_id else {owner.broker_id: ()}

        return await self.of_parts(parts, here, wait_s)

    async def of_parts(
        self,
        places: Callable[[], Awaitable[tuple[bool, dict[str, Sequence[str]]]]],
        here: Callable[[float], Awaitable[list[Any]]],
        wait_s: float,
    ) -> list[Any]:
        """Receive from several brokers; returns the first messages. `places` returns whether this broker owns some
        of the queues, and the names of those that each other broker owns."""
        clock, polls = self._call.session.clock, self._services.polls
        due = clock.monotonic() + wait_s
        while True:
            left_s = max(0.0, due - clock.monotonic())
            some_here, elsewhere = await places()
            if some_here and not elsewhere:
                try:
                    found = await here(left_s)
                except MOVED:
                    if self._call.handed_on or clock.monotonic() >= due:
                        raise
                    await clock.sleep(_PAUSE_S)
                    continue
                if found or clock.monotonic() >= due:
                    return found
                await clock.sleep(_LOOK_S)  # a queue has moved, or the client's subscriptions changed
                continue
            slice_s = min(left_s, _POLL_S)
            keys: list[Key] = []
            for broker_id, names in elsewhere.items():
                keys.append((*self._key, broker_id))
                polls.begin(keys[-1], partial(self._poll, broker_id, names, slice_s))
            found, failed = await self._first(keys, here if some_here else None, slice_s)
            if failed is not None and not isinstance(failed, _PASSING):
                raise failed
            if found or clock.monotonic() >= due:
                return found
            if failed is not None or not keys:
                await clock.sleep(_PAUSE_S)

    async def _first(
        self, keys: list[Key], here: Callable[[float], Awaitable[list[Any]]] | None, slice_s: float
    ) -> tuple[list[Any], WeirError | None]:
        polls = self._services.polls
        mine = [] if here is None else [asyncio.ensure_future(here(slice_s))]
        try:
            if keys or mine:
                await polls.wait(keys, mine, slice_s + _POLL_S)
        finally:
            for task in mine:
                task.cancel()
            local = await asyncio.gather(*mine, return_exceptions=True)
        found, failed = polls.take(keys)
        for one in local:
            if isinstance(one, list):
                found = one + found
            elif isinstance(one, WeirError):
                failed = one
            elif isinstance(one, Exception):
                raise one
        return found, failed

    async def _poll(self, broker_id: str, names: Sequence[str], wait_s: float) -> list[Any]:
        request = api.ReceiveMessageRequest()
        request.CopyFrom(self._request)
        set_ms(request.long_polling_timeout, int(wait_s * 1000))
        answers = await hand_on(self._call, broker_id, request, wait_s + 1.0, names)
        status = next((one.status for one in answers if one.HasField("status")), None)
        if status is not None and status.code not in (api.Code.OK, api.Code.MESSAGE_NOT_FOUND):
            raise Refused(status.code, status.message)
        return [one for one in answers if one.HasField("message")]

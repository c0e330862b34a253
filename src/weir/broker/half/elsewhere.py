"""Producers that are connected to other brokers: they are asked what became of a half message, too."""

import logging
from collections.abc import Callable, Iterable

from weir.broker.api import Guard, HalfCheck
from weir.broker.half.checkers import LiveCheckers
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.errors import WeirError
from weir.model.registry import BrokerInfo
from weir.wire.batch import decode_batch, encode_batch
from weir.wire.peer.gateways import AskHalf, HalfAsked

log = logging.getLogger(__name__)

#: How long another broker has to say whether it has somebody.
_ASK_S = 3.0


class CheckersElsewhere:
    """Asks brokers one after the other, another one first each time, until one of them has somebody; and answers
    others for those that are connected here."""

    def __init__(
        self,
        here: LiveCheckers,
        guard: Guard,
        peers: PeerCalls,
        handlers: PeerHandlers,
        *,
        broker_id: str,
        brokers: Callable[[], Iterable[BrokerInfo]],
    ) -> None:
        self._here = here
        self._guard = guard
        self._peers = peers
        self._broker_id = broker_id
        self._brokers = brokers
        self._turn = 0
        handlers.on(AskHalf, self._answer)

    async def ask(self, check: HalfCheck) -> bool:
        others = [one.broker_id for one in self._brokers() if one.broker_id != self._broker_id]
        if not others:
            return False
        question = AskHalf(check.topic, check.message, b"".join(map(bytes, encode_batch(check.batch))))
        self._turn += 1
        for at in range(len(others)):
            other = others[(self._turn + at) % len(others)]
            try:
                if (await self._peers.ask(other, question, timeout_s=_ASK_S)).asked:
                    return True
            except WeirError as silent:
                log.debug("broker %s was not asked for producers of %s: %s", other, check.topic, silent)
        return False

    async def _answer(self, asked: AskHalf) -> HalfAsked:
        check = HalfCheck(asked.topic, asked.message, decode_batch(asked.batch))
        return HalfAsked(self._here.ask(check, self._guard))

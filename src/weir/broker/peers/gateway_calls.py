"""Calls of clients from gateway to gateway, over the brokers' own protocol."""

from collections.abc import Sequence

from weir.broker.api import ClientCall
from weir.broker.api.gateway_calls import Answering
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.model.check import check
from weir.model.errors import PeerUnsupportedError
from weir.wire.peer.gateways import GatewayAnswer, GatewayCall

#: How much longer than the call itself its way may take.
_WAY_S = 5.0


class PeerGatewayCalls:
    """Fills `api.GatewayCalls`."""

    def __init__(self, peers: PeerCalls, handlers: PeerHandlers) -> None:
        self._peers = peers
        self._answering: dict[str, Answering] = {}
        handlers.on(GatewayCall, self._answer)

    def answer(self, gateway: str, answering: Answering) -> None:
        check(gateway not in self._answering, f"calls of {gateway} are answered by one part")
        self._answering[gateway] = answering

    async def hand_on(self, broker_id: str, call: ClientCall) -> Sequence[bytes]:
        request = GatewayCall(
            call.gateway, call.method, call.role, call.client, call.body, call.wait_ms, call.about
        )
        answer = await self._peers.ask(broker_id, request, timeout_s=call.wait_ms / 1000 + _WAY_S)
        return answer.messages

    async def _answer(self, said: GatewayCall) -> GatewayAnswer:
        answering = self._answering.get(said.gateway)
        if answering is None:
            raise PeerUnsupportedError(f"this broker has no gateway for {said.gateway[:40]!r}")
        call = ClientCall(said.gateway, said.method, said.role, said.client, said.body, said.wait_ms, said.about)
        return GatewayAnswer(tuple(await answering(call)))

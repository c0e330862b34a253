"""Brokers of one process that ask each other without a network, for tests; what they say is coded all the same."""

from weir.broker.peers.peer_calls import PeerHandlers
from weir.model.errors import PeerUnavailableError
from weir.wire.peer.call_table import call_of, decode_answer_value, decode_request_value, encode_answer_value
from weir.wire.peer.protocol import A, PeerRequest, decode_failure, encode_failure, encode_value


class InProcessPeers:
    """All brokers that know each other. `join` gives a broker what it asks the others with."""

    def __init__(self) -> None:
        self._handlers: dict[str, PeerHandlers] = {}
        #: Pairs (asker, asked) that do not reach each other, that way.
        self.cut: set[tuple[str, str]] = set()

    def join(self, broker_id: str, handlers: PeerHandlers) -> "InProcessPeer":
        self._handlers[broker_id] = handlers
        return InProcessPeer(broker_id, self)

    def leave(self, broker_id: str) -> None:
        """It is gone: whoever asks it finds nobody."""
        self._handlers.pop(broker_id, None)

    def handlers(self, asker: str, broker_id: str) -> PeerHandlers:
        found = self._handlers.get(broker_id)
        if found is None or (asker, broker_id) in self.cut:
            raise PeerUnavailableError(f"broker {broker_id} cannot be reached", sent=False)
        return found


class InProcessPeer:
    """What one of them asks with; fills `PeerCalls`."""

    def __init__(self, broker_id: str, peers: InProcessPeers) -> None:
        self._broker_id = broker_id
        self._peers = peers

    async def ask(self, broker_id: str, request: PeerRequest[A], *, timeout_s: float | None = None) -> A:
        handlers = self._peers.handlers(self._broker_id, broker_id)
        if broker_id == self._broker_id:
            return await handlers.handle(request)
        call = call_of(request)
        sent = decode_request_value(call, encode_value(request))
        try:
            answer = await handlers.handle(sent)
        except Exception as failure:
            raise decode_failure(encode_failure(failure)) from None
        return decode_answer_value(call, encode_answer_value(call, answer))

"""One connection to another broker."""

from collections.abc import Callable

from weir.broker.peers.settings import PURPOSE
from weir.model.errors import PeerUnavailableError, WireError
from weir.runtime.interfaces import Runtime
from weir.runtime.node_link import LinkWords, NodeLink
from weir.wire.peer import messages
from weir.wire.peer.errors import decode_failure
from weir.wire.peer.hello import MAX_HELLO_BYTES, VERSION, Hello, decode_welcome, encode_hello
from weir.wire.proof import ClusterSecret

_WORDS = LinkWords(PURPOSE, MAX_HELLO_BYTES, messages.MAX_FRAME_BYTES)


class PeerLink(NodeLink[messages.Response]):
    """`on_ended` is called once, whatever ended it."""

    def __init__(
        self,
        runtime: Runtime,
        hello: Hello,
        *,
        secret: ClusterSecret | None,
        on_response: Callable[[messages.Response], None],
        on_ended: Callable[["PeerLink", PeerUnavailableError], None],
    ) -> None:
        super().__init__(runtime, hello.meant, _WORDS, secret=secret, on_response=on_response)
        self._said = hello
        self._on_ended = on_ended

    def _hello(self) -> bytes:
        return encode_hello(self._said)

    def _read_welcome(self, body: memoryview) -> int:
        welcome = decode_welcome(body)
        if isinstance(welcome, messages.Failed):
            raise decode_failure(welcome.value)
        if welcome.version != VERSION or welcome.broker_id != self._node:
            raise WireError(f"broker {welcome.broker_id} welcomes with protocol version {welcome.version}")
        return welcome.max_frame_bytes

    def _read_response(self, body: memoryview) -> messages.Response:
        response = messages.decode_response(body)
        if response.request_id == 0:
            raise decode_failure(response.value)
        return response

    def _tell_ended(self, why: str, *, sent: bool) -> None:
        self._on_ended(self, PeerUnavailableError(f"broker {self._node} cannot be reached: {why}", sent=sent))

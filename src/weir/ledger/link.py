"""One connection to a remote bookie."""

from collections.abc import Callable

from weir.model.errors import BookieUnavailableError, WireError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.node_link import LinkWords, NodeLink
from weir.wire import bookie as wire
from weir.wire.bookie_errors import error_from
from weir.wire.bookie_hello import MAX_HELLO_BYTES, PURPOSE, VERSION, Hello, decode_welcome, encode_hello
from weir.wire.proof import ClusterSecret

_WORDS = LinkWords(PURPOSE, MAX_HELLO_BYTES, wire.MAX_FRAME_BYTES)


class BookieLink(NodeLink[wire.Response]):
    """`on_ended` is called once, whatever ended it."""

    def __init__(
        self,
        runtime: Runtime,
        bookie_id: BookieId,
        *,
        secret: ClusterSecret | None,
        on_response: Callable[[wire.Response], None],
        on_ended: Callable[["BookieLink", BookieUnavailableError], None],
    ) -> None:
        super().__init__(runtime, bookie_id, _WORDS, secret=secret, on_response=on_response)
        self._on_ended = on_ended

    def _hello(self) -> bytes:
        return encode_hello(Hello(BookieId(self._node)))

    def _read_welcome(self, body: memoryview) -> int:
        welcome = decode_welcome(body)
        if isinstance(welcome, wire.Failed):
            raise error_from(welcome)
        if welcome.version != VERSION or welcome.bookie_id != self._node:
            raise WireError(f"bookie {welcome.bookie_id} welcomes with protocol version {welcome.version}")
        return welcome.max_frame_bytes

    def _read_response(self, body: memoryview) -> wire.Response:
        response = wire.decode_response(body)
        if isinstance(response, wire.Failed) and response.request_id == 0:
            raise error_from(response)
        return response

    def _tell_ended(self, why: str, *, sent: bool) -> None:
        self._on_ended(self, BookieUnavailableError(f"bookie {self._node} is not reachable: {why}"))

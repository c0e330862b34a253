"""Header blocks (RFC 7541): decoded with the client's table, encoded without one.

What a server of gRPC says in headers is always the same, so it is encoded as literals that no table remembers.
"""

from collections import deque
from collections.abc import Iterable

from weir.model.errors import WireError
from weir.wire.http2 import huffman

Header = tuple[bytes, bytes]

#: What clients may assume of the table if nothing is said.
TABLE_BYTES = 4096
#: What a header counts for beside its own bytes.
_OVERHEAD_BYTES = 32
#: Strings that were decoded and may come again, and the longest of those.
_REMEMBERED = 1024
_REMEMBERED_BYTES = 256
#: Bytes of a number: more would be longer than any block.
_MOST_NUMBER_BYTES = 5

#: By its index; there is none at 0.
_STATIC: tuple[Header, ...] = (
    (b"", b""),
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
_FIRST_DYNAMIC = len(_STATIC)


class HeaderListTooLarge(WireError):
    """The headers of one request are more than this server takes."""


class HeaderDecoder:
    """Of one connection: blocks come in the order in which the client encoded them."""

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        #: The newest first.
        self._table: deque[Header] = deque()
        self._size = 0
        self._most = TABLE_BYTES
        self._strings: dict[bytes, bytes] = {}

    def decode(self, block: bytes) -> list[Header]:
        """WireError: what the client's table is can no longer be known, so the connection is over."""
        found: list[Header] = []
        at, left = 0, self._max_list_bytes
        end = len(block)
        table = self._table
        try:
            while at < end:
                first = block[at]
                if first & 0x80:  # indexed
                    index = first & 0x7F
                    if index == 0x7F:
                        index, at = _number(block, at, 0x7F)
                    else:
                        at += 1
                    header = _STATIC[index] if index < _FIRST_DYNAMIC else table[index - _FIRST_DYNAMIC]
                elif first & 0x40:  # a literal that is remembered
                    header, at = self._literal(block, at, 0x3F)
                    self._remember(header)
                elif first & 0x20:
                    if found:
                        raise WireError("the size of the header table changes within a block")
                    at = self._resize(block, at)
                    continue
                else:
                    header, at = self._literal(block, at, 0x0F)
                if not header[0]:
                    raise WireError("a header has no name")
                left -= len(header[0]) + len(header[1]) + _OVERHEAD_BYTES
                if left < 0:
                    raise HeaderListTooLarge(f"headers of more than {self._max_list_bytes} bytes")
                found.append(header)
        except IndexError:
            raise WireError("a header block is cut off, or names a header that is not there") from None
        return found

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Header, int]:
        index = block[at] & mask
        if index == mask:
            index, at = _number(block, at, mask)
        else:
            at += 1
        if not index:
            name, at = self._string(block, at)
        elif index < _FIRST_DYNAMIC:
            name = _STATIC[index][0]
        else:
            name = self._table[index - _FIRST_DYNAMIC][0]
        value, at = self._string(block, at)
        return (name, value), at

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        size = first & 0x7F
        if size == 0x7F:
            size, at = _number(block, at, 0x7F)
        else:
            at += 1
        end = at + size
        if end > len(block):
            raise WireError("a header string is longer than its block")
        raw = block[at:end]
        if not first & 0x80:
            return raw, end
        strings = self._strings
        known = strings.get(raw)
        if known is None:
            known = huffman.decode(raw)
            if size <= _REMEMBERED_BYTES:
                if len(strings) >= _REMEMBERED:
                    strings.clear()
                strings[raw] = known
        return known, end

    def _resize(self, block: bytes, at: int) -> int:
        size, at = _number(block, at, 0x1F) if block[at] & 0x1F == 0x1F else (block[at] & 0x1F, at + 1)
        if size > TABLE_BYTES:
            raise WireError(f"a header table of {size} bytes was not offered")
        self._most = size
        self._evict()
        return at

    def _remember(self, header: Header) -> None:
        self._table.appendleft(header)
        self._size += len(header[0]) + len(header[1]) + _OVERHEAD_BYTES
        if self._size > self._most:
            self._evict()

    def _evict(self) -> None:
        while self._size > self._most:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _OVERHEAD_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number that fills its prefix, and goes on in the bytes behind."""
    number, shift = mask, 0
    for place in range(at + 1, at + 1 + _MOST_NUMBER_BYTES):
        byte = block[place]
        number += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, place + 1
    raise WireError("a number in a header block is too long")


def encode(headers: Iterable[Header]) -> bytes:
    """As literals that the client does not remember."""
    block = bytearray()
    for name, value in headers:
        block += b"\0" + _sized(name) + _sized(value)
    return bytes(block)


def _sized(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    size -= 0x7F
    head = bytearray((0x7F,))
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + text

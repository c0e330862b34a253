"""Which partition a message goes to, as the official clients decide it: by the key's hash, else in turn."""

from weir.model.ids import Buffer

_MASK = 2**32 - 1


def java_hash(key: str | Buffer) -> int:
    """Java's `String.hashCode`, made positive: over UTF-16 units of text, over bytes otherwise."""
    data = bytes(key) if not isinstance(key, str) else None
    units = data if data is not None else _utf16(str(key))
    number = 0
    for unit in units:
        number = (31 * number + unit) & _MASK
    return number & 0x7FFFFFFF


def _utf16(text: str) -> list[int]:
    raw = text.encode("utf-16-be", errors="surrogatepass")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]


class Router:
    """The choice for one producer; without a key, partitions take turns."""

    def __init__(self, partitions: int, first: int = 0) -> None:
        self._partitions = partitions
        self._next = first % partitions

    def choose(self, key: str | bytes | None) -> int:
        if key is not None:
            return java_hash(key) % self._partitions
        chosen = self._next
        self._next = (chosen + 1) % self._partitions
        return chosen

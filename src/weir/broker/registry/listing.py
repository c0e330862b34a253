"""The topics of a namespace as a list: filtered by a pattern, hashed, and watched for what comes and goes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from weir.broker.api import Pattern
from weir.model.topics import TopicName
from weir.wire.checksum import crc32c

_MAX_PATTERN_CHARS = 512


class TopicPattern(Pattern):
    """On topic names, without their domain and partition."""

    def __init__(self, pattern: str) -> None:
        for domain in ("non-persistent://", "persistent://"):
            pattern = pattern.replace(domain, "", 1)
        super().__init__(pattern)

    def matches(self, name: TopicName) -> bool:
        return self.fullmatch(f"{name.namespace}/{name.local}")


def topics_hash(names: Sequence[str]) -> str:
    """The hash that Pulsar's clients know a list of topics by: CRC32C of the sorted names, joined by commas.

    Java sorts by UTF-16 units, and Guava writes a 32-bit hash with its lowest byte first.
    """
    ordered = sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return crc32c(",".join(ordered).encode()).to_bytes(4, "little").hex()


@dataclass(frozen=True, slots=True)
class TopicListChange:
    """What came and what went since the last look, and the hash of the list as it is now."""

    added: list[TopicName]
    removed: list[TopicName]
    hash: str


class TopicListWatch:
    """A list of topics, and what changes in it. Changes between two looks are merged, so nothing piles up."""

    def __init__(
        self,
        current: Callable[[], list[TopicName]],
        changed: Callable[[], Awaitable[None]],
        *,
        known_hash: str = "",
        may_see: Callable[[], bool] = lambda: True,
    ) -> None:
        """`changed` waits until `current` or `may_see` may answer something else. `known_hash`: of the list that
        the watcher has already; if it is right, `names` need not be sent."""
        self._current = current
        self._changed = changed
        self._may_see = may_see
        self.names = current()
        self.hash = topics_hash([str(name) for name in self.names])
        self.is_news = self.hash != known_hash

    async def next(self) -> TopicListChange:
        """Wait for a change. Cancelling loses nothing."""
        while True:
            if self._may_see() and (now := self._current()) != self.names:
                return self._take(now)
            await self._changed()

    def _take(self, now: list[TopicName]) -> TopicListChange:
        before, after = dict.fromkeys(self.names), dict.fromkeys(now)
        self.names = now
        self.hash = topics_hash([str(name) for name in now])
        return TopicListChange(
            [name for name in now if name not in before], [name for name in before if name not in after], self.hash
        )

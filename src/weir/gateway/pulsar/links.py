"""The producers, consumers or topic watchers of one connection, by the ids from its client."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from weir.model.errors import NotAllowedError, TooManyError, WeirError

#: Ids of closed links to remember: the client may still send commands for them.
_REMEMBERED = 1024

L = TypeVar("L")


class Opening:
    """A link in creation. The client may give up and close it before it is ready."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False


class Links(Generic[L]):
    """Maps ids to links that are open or in creation."""

    def __init__(self, what: str, limit: int, on_full: Callable[[str], None]) -> None:
        """`on_full`: called with `what` when a link is refused because of the limit."""
        self._what = what
        self._on_full = on_full
        self._limit = limit
        self._links: dict[int, Opening | L] = {}
        self._closed: OrderedDict[int, WeirError | None] = OrderedDict()

    def begin(self, link_id: int) -> Opening:
        """Reserve a free id; TooManyError, NotAllowedError."""
        if len(self._links) >= self._limit:
            self._on_full(self._what)
            raise TooManyError(
                f"this connection has {self._limit} {self._what}s, which is its limit",
                hint="use more connections, or raise limits.connection_consumers",
            )
        if link_id in self._links:
            raise NotAllowedError(f"{self._what} {link_id} already exists on this connection")
        self._closed.pop(link_id, None)
        opening = self._links[link_id] = Opening()
        return opening

    def end(self, link_id: int, was: "Opening | L") -> bool:
        """Free an id if it still belongs to `was`; returns whether it did."""
        if self._links.get(link_id) is not was:
            return False
        del self._links[link_id]
        return True

    def put(self, link_id: int, opening: Opening, link: L) -> bool:
        """Register a created link, unless it was closed during creation; returns whether it is registered."""
        if self._links.get(link_id) is not opening or opening.abandoned:
            return False
        self._links[link_id] = link
        return True

    def get(self, link_id: int) -> "Opening | L | None":
        return self._links.get(link_id)

    def live(self, link_id: int) -> L:
        """The open link of an id; NotAllowedError, or the reason why the broker closed it."""
        link = self._links.get(link_id)
        if link is None or isinstance(link, Opening):
            why = self._closed.get(link_id)
            if why is not None:
                raise why.with_traceback(None)  # the traceback would grow with every raise
            raise NotAllowedError(f"this connection has no {self._what} {link_id}")
        return link

    def retire(self, link_id: int, why: WeirError | None = None) -> None:
        """Remember a link that the broker closed: later commands for it are no protocol error. `why`: the error
        that they get."""
        self._closed[link_id] = why
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)

    def retired(self, link_id: int) -> bool:
        return link_id in self._closed

    def clear(self) -> list[L]:
        """Remove all links, and return the open ones."""
        there = list(self)
        self._links.clear()
        return there

    def __iter__(self) -> Iterator[L]:
        """The open links."""
        return (link for link in list(self._links.values()) if not isinstance(link, Opening))

    @property
    def are_open(self) -> bool:
        """Whether links exist, and none is in creation."""
        return bool(self._links) and not any(isinstance(link, Opening) for link in self._links.values())

    def __len__(self) -> int:
        return len(self._links)

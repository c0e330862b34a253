"""The producers, or consumers, of one connection under the ids that its client gave them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from weir.model.errors import NotAllowedError, TooManyError, WeirError

#: How many ids of links that the broker closed are remembered: commands for them may still be under way.
_REMEMBERED = 1024

L = TypeVar("L")


class Opening:
    """A link that is being made. A client may give up waiting and close it before it is there."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False


class Links(Generic[L]):
    """id -> being made, or there; none once closed."""

    def __init__(self, what: str, limit: int, on_full: Callable[[str], None]) -> None:
        """`on_full`: called with `what` when one over the limit is refused."""
        self._what = what
        self._on_full = on_full
        self._limit = limit
        self._links: dict[int, Opening | L] = {}
        self._closed: OrderedDict[int, WeirError | None] = OrderedDict()

    def begin(self, link_id: int) -> Opening:
        """Take an id that is free."""
        if len(self._links) >= self._limit:
            self._on_full(self._what)
            raise TooManyError(
                f"this connection has {self._limit} {self._what}s, which is its limit",
                hint="use more connections, or raise limits.connection_consumers",
            )
        if link_id in self._links:
            raise NotAllowedError(f"{self._what} {link_id} is there already")
        self._closed.pop(link_id, None)
        opening = self._links[link_id] = Opening()
        return opening

    def end(self, link_id: int, was: "Opening | L") -> bool:
        """Free an id, if it still stands for this; whether it did."""
        if self._links.get(link_id) is not was:
            return False
        del self._links[link_id]
        return True

    def put(self, link_id: int, opening: Opening, link: L) -> bool:
        """The link is there, unless it was closed while it was being made; whether it is."""
        if self._links.get(link_id) is not opening or opening.abandoned:
            return False
        self._links[link_id] = link
        return True

    def get(self, link_id: int) -> "Opening | L | None":
        return self._links.get(link_id)

    def live(self, link_id: int) -> L:
        """The link that is there; an error of the client if there is none."""
        link = self._links.get(link_id)
        if link is None or isinstance(link, Opening):
            why = self._closed.get(link_id)
            if why is not None:
                raise why.with_traceback(None)  # which would grow with every time that it is raised
            raise NotAllowedError(f"there is no {self._what} {link_id} on this connection")
        return link

    def retire(self, link_id: int, why: WeirError | None = None) -> None:
        """Remember that the broker closed it, so that what is under way for it is not an error; or is this one."""
        self._closed[link_id] = why
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)

    def retired(self, link_id: int) -> bool:
        return link_id in self._closed

    def clear(self) -> list[L]:
        """Forget all; answers those that were there."""
        there = list(self)
        self._links.clear()
        return there

    def __iter__(self) -> Iterator[L]:
        """Those that are there."""
        return (link for link in list(self._links.values()) if not isinstance(link, Opening))

    @property
    def are_open(self) -> bool:
        """Whether there are any, and none that is being made."""
        return bool(self._links) and not any(isinstance(link, Opening) for link in self._links.values())

    def __len__(self) -> int:
        return len(self._links)

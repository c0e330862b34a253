"""Lists of topics: filtered by a pattern, and watched for what comes and goes."""

from collections.abc import Sequence
from typing import Protocol

from weir.model.topics import Domain, NamespaceName, TopicName


class TopicListChange(Protocol):
    @property
    def added(self) -> Sequence[TopicName]: ...

    @property
    def removed(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...


class TopicListWatch(Protocol):
    """A list of topics, and what changes in it."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...

    @property
    def is_news(self) -> bool:
        """Whether the list differs from the one whose hash the watcher knew."""

    async def next(self) -> TopicListChange: ...

    def close(self) -> None:
        """Nobody looks any more."""


class TopicLists(Protocol):
    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        role: str,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        """NotAuthorisedError; TooManyError if no client could be told so many. And nothing is told any more
        once the role may not know."""

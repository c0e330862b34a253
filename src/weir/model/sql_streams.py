"""Streams that SQL defines: what is wanted, how far it is, and who runs them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.model.errors import SqlError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

#: Limits of a stored query. One process parses and plans the queries of all tenants.
MAX_SQL_CHARACTERS = 100_000
MAX_SQL_TOKENS = 10_000
MAX_SQL_NESTING = 50
_HOW_SMALLER = "divide it into several streams; a list of values can be a topic that the query joins"

#: A comment, a literal or quoted name (up to the end of the text if it is not closed), a word or a symbol. No
#: alternative can backtrack, so the time is linear.
_LEXEME = re.compile(
    r"""(?P<comment>--[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?)
    |'(?:[^'\\]|\\.)*+\\?'?|"(?:[^"\\]|\\.)*+\\?"?|`[^`]*+`?
    |(?P<open>[(\[{])|(?P<close>[)\]}])|\w++|[^\w\s]""",
    re.VERBOSE | re.DOTALL,
)


class Wanted(Enum):
    """What a stream shall do."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SqlStream:
    """A query whose rows go to the topic of this name, for as long as it is defined."""

    name: TopicName
    #: Not given to another stream, so what a dropped one left is not taken for its successor's.
    id: str
    sql: str
    #: The topics that it reads. Whoever defined it may read these; the runner reads no others for it.
    sources: tuple[TopicName, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = Wanted.RUNNING
    #: Who defined it.
    role: str = ""
    created_ms: int = 0

    @property
    def subscription(self) -> str:
        """Under which the sources show how far the stream is."""
        return f"stream-{table_name(self.name)}"


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What the runner last said of a stream. `id`: which stream of that name it is about."""

    id: str
    #: starting, running, failed or paused.
    state: str
    rows_per_second: float = 0.0
    #: Rows read since the runner started it.
    rows: int = 0
    #: Messages that wait for it: not yet processed, those of partitions that it never read among them.
    lag: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    #: The last micro-batch; -1 if there was none.
    batch: int = -1
    batch_ms: int = 0
    #: What it last died of; kept until it is seen to work again.
    error: str = ""
    #: How often it died since it last worked.
    failures: int = 0
    #: When it died last, and when it is tried again, in ms since 1970; 0: never, or it is being tried.
    failed_ms: int = 0
    next_try_ms: int = 0
    reported_ms: int = 0


@dataclass(frozen=True, slots=True)
class RunnerLease:
    """The one process that runs the streams, until it fails to say so in time."""

    runner: str
    where: str
    expires_ms: int


def table_name(topic: TopicName) -> str:
    """The shortest name by which SQL knows the topic."""
    namespace = topic.namespace
    if namespace == DEFAULT_NAMESPACE:
        parts = [topic.local]
    elif namespace.tenant == DEFAULT_NAMESPACE.tenant:
        parts = [namespace.name, topic.local]
    else:
        parts = [namespace.tenant, namespace.name, topic.local]
    return ".".join(part if part.isidentifier() else f"`{part}`" for part in parts)


def check_query_size(sql: str) -> None:
    """SqlError if a query of a stream exceeds a limit. Needs no SQL parser, and time linear in the text."""
    if len(sql) > MAX_SQL_CHARACTERS:
        raise SqlError(
            f"the query has {len(sql):,} characters; the limit is {MAX_SQL_CHARACTERS:,}", hint=_HOW_SMALLER
        )
    tokens = depth = 0
    for found in _LEXEME.finditer(sql):
        kind = found.lastgroup
        tokens += kind != "comment"
        depth += (kind == "open") - (kind == "close")
        if depth > MAX_SQL_NESTING:
            raise SqlError(
                f"the query nests more than {MAX_SQL_NESTING} brackets", hint="write WITH name AS (...) SELECT ..."
            )
        check_token_count(tokens)


def check_token_count(tokens: int) -> None:
    if tokens > MAX_SQL_TOKENS:
        raise SqlError(f"the query has more than {MAX_SQL_TOKENS:,} words and symbols", hint=_HOW_SMALLER)

"""The statements of `weir sql`, as values: its own, and queries, which are Spark's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.model.definitions import Replay
from weir.spark.tables.query import Query

Name = tuple[str, ...]

# --- streams ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateStream:
    name: Name
    query: Query
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowStreams:
    pass


@dataclass(frozen=True, slots=True)
class DescribeStream:
    name: Name


@dataclass(frozen=True, slots=True)
class Watch:
    """The same again and again, for people who look on."""

    what: ShowStreams | DescribeStream


@dataclass(frozen=True, slots=True)
class PauseStream:
    name: Name


@dataclass(frozen=True, slots=True)
class ResumeStream:
    name: Name


@dataclass(frozen=True, slots=True)
class DropStream:
    name: Name
    if_exists: bool = False


# --- tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShowTables:
    """`namespace`: only its topics. `like`: only names like this, with * for anything."""

    namespace: Name = ()
    like: str = "*"


@dataclass(frozen=True, slots=True)
class DescribeTable:
    name: Name


@dataclass(frozen=True, slots=True)
class CreateView:
    """A name for a query, for as long as the session lasts."""

    name: Name
    query: Query
    columns: tuple[str, ...] = ()
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropView:
    name: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """The rows of a query become messages of a topic. `columns`: what they are in it, by their places; `literal`:
    the rows stand in the statement, and have no names. `head`: the statement without its query, for Spark."""

    name: Name
    query: Query
    columns: tuple[str, ...] = ()
    literal: bool = False
    head: str = ""


@dataclass(frozen=True, slots=True)
class SelectStream:
    query: Query


@dataclass(frozen=True, slots=True)
class Select:
    """A query on what is stored. `explain`: show how it would be run; the words before it."""

    query: Query
    explain: str = ""


@dataclass(frozen=True, slots=True)
class Other:
    """Anything else, for Spark. `query`: what it ends with, if that is one; it may read topics. `makes`: the table
    that it would make."""

    text: str
    query: Query | None = None
    makes: Name = ()


@dataclass(frozen=True, slots=True)
class ReplayMessages:
    """Deliver messages again. `into`: as `weir replay --into` has it. `since`, `until`: moments, as texts."""

    name: Name
    into: str
    where: str = ""
    since: str | None = None
    until: str | None = None
    rate: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class SelectReplay:
    """Keep the messages of a replay that was begun, so that whoever asks can deliver them."""

    id: str


@dataclass(frozen=True, slots=True)
class CountReplay:
    """How many messages a replay would deliver, which nobody has begun."""

    wanted: Replay


@dataclass(frozen=True, slots=True)
class ShowReplays:
    pass


Statement = (
    ReplayMessages
    | SelectReplay
    | CountReplay
    | ShowReplays
    | CreateStream
    | ShowStreams
    | DescribeStream
    | Watch
    | PauseStream
    | ResumeStream
    | DropStream
    | ShowTables
    | DescribeTable
    | CreateView
    | DropView
    | Insert
    | SelectStream
    | Select
    | Other
)

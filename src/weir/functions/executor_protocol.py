"""What a worker and the processes that run its function say to each other: MessagePack, framed by a length."""

from msgspec import Struct, field

Headers = list[tuple[str, bytes | None]]


class Item(Struct, array_like=True):
    """A message for the function. `topic`, `partition`, `offset`: where it was first stored."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    attempt: int = 1


class Out(Struct, array_like=True):
    """A message that the function sends. `topic`: None for its output."""

    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class Result(Struct, array_like=True):
    """What became of one item. `error`: why it failed, if it did; `logs` are told all the same."""

    outs: list[Out] = field(default_factory=list)
    error: str | None = None


class LogLine(Struct, array_like=True):
    """Something that the function said while it had this item, if it had one."""

    time_ms: int
    level: str
    logger: str
    text: str
    topic: str = ""
    partition: int = -1
    offset: int = -1


class SchemaVersion(Struct, array_like=True):
    version: int
    kind: str
    definition: str
    properties: dict[str, str] = field(default_factory=dict)


class Setup(Struct, array_like=True):
    """The first frame: what to run. `schemas`: of inputs and outputs, by their full names, the latest last."""

    name: str
    version: int
    instance: int
    code: str
    file: str
    entry: str
    output: str | None
    config: dict[str, str]
    stateful: bool
    batch: bool | None
    log_level: str
    schemas: dict[str, list[SchemaVersion]]
    #: How long a call may take; 0: as long as it likes.
    timeout_s: float = 0.0
    #: Of the function: topics that it names without one are there.
    namespace: str = "public/default"
    #: Whether answers may be about the first of the items alone, so that they come in good time.
    sliced: bool = False


class Ready(Struct, array_like=True):
    """The answer to it. `error`: why the code cannot be loaded. `batch`: whether all items go into one call."""

    error: str | None
    logs: list[LogLine]
    batch: bool = False


class Work(Struct, array_like=True):
    """Items in their order, and the state of their keys."""

    items: list[Item]
    states: dict[bytes, bytes | None]


class Done(Struct, array_like=True):
    """A result for each item, or for the first of them; and the states that have changed. Empty frames before it
    say that calls go on."""

    results: list[Result]
    states: dict[bytes, bytes | None]
    logs: list[LogLine]

"""The dataflow graph: what there is, what each flow reads and writes, and in which order it can be seen."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from weir.model.errors import ConfigError


class Kind(StrEnum):
    SOURCE = "topic, read"
    SINK = "topic, written"
    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    VIEW = "view"
    #: Read by a flow, and none of the pipeline's own: a table of Spark's, or files.
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    kind: Kind
    #: Of topics, as Kafka's clients call them.
    topic: str | None = None
    #: Columns, and their types as Spark writes them; empty until they are known.
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """A flow, and what it reads."""

    name: str
    target: str
    inputs: tuple[str, ...]


@dataclass
class Graph:
    datasets: dict[str, Dataset] = field(default_factory=dict)
    flows: list[FlowEdge] = field(default_factory=list)

    def layers(self) -> list[list[str]]:
        """Datasets by how many flows lie before them; ConfigError names a circle."""
        before: dict[str, set[str]] = {name: set() for name in self.datasets}
        for flow in self.flows:
            before.setdefault(flow.target, set()).update(flow.inputs)
        depth: dict[str, int] = {}
        left = dict.fromkeys(before)
        while left:
            ready = [name for name in left if all(one in depth for one in before[name])]
            if not ready:
                raise ConfigError(
                    f"{' and '.join(sorted(left)[:3])} depend on themselves", hint="break the circle"
                )
            for name in ready:
                depth[name] = max((depth[one] + 1 for one in before[name]), default=0)
            for name in ready:
                del left[name]
        found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for name, at in depth.items():
            found[at].append(name)
        return found

    def unused(self) -> list[str]:
        """Topics of the file that no flow reads or writes."""
        used = {name for flow in self.flows for name in (*flow.inputs, flow.target)}
        topics = (Kind.SOURCE, Kind.SINK)
        return [one.name for one in self.datasets.values() if one.kind in topics and one.name not in used]


# --- SQL --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlElement:
    """One statement of a file. `query` is empty where a table is made that flows fill later."""

    kind: Kind | None
    name: str
    query: str
    text: str
    #: Of a flow: what it writes.
    target: str = ""
    #: Of the file, where it begins.
    line: int = 1


_NAME = r"(?P<name>(?:`[^`]+`|[\w.])+)"
_CREATE = re.compile(
    rf"CREATE\s+(?:OR\s+\w+\s+)?(?P<what>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|(?:TEMPORARY\s+|TEMP\s+)?VIEW|FLOW)"
    rf"\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}",
    re.IGNORECASE,
)
_INSERT = re.compile(
    r"\bAS\s+INSERT\s+(?:INTO|ONCE\s+INTO)\s+(?P<target>(?:`[^`]+`|[\w.])+)\s+(?:BY\s+NAME\s+)?", re.IGNORECASE
)
_AS = re.compile(r"\bAS\b\s*(?=\(*\s*(?:SELECT|WITH|FROM|VALUES|TABLE)\b)", re.IGNORECASE)
_KINDS = {"STREAMING": Kind.STREAMING_TABLE, "MATERIALIZED": Kind.MATERIALIZED_VIEW}


def elements(text: str) -> list[SqlElement]:
    """The statements of a file; ConfigError if one defines nothing that a pipeline has."""
    found = []
    for line, statement in statements(text):
        created = _CREATE.match(statement)
        if created is None:
            if re.match(r"(?:SET|USE)\b", statement, re.IGNORECASE):
                found.append(SqlElement(None, "", "", statement, line=line))
                continue
            raise ConfigError(
                f"line {line}: {' '.join(statement.split())[:60]!r} defines nothing",
                hint="write CREATE STREAMING TABLE, MATERIALIZED VIEW, TEMPORARY VIEW or FLOW",
            )
        name, word = unquoted(created["name"]), created["what"].split()[0].upper()
        rest = statement[created.end() :]
        if word == "FLOW":
            into = _INSERT.search(rest)
            if into is None:
                raise ConfigError(
                    f"line {line}: flow {name} writes nothing",
                    hint="write AS INSERT INTO target BY NAME SELECT ...",
                )
            query, target = rest[into.end() :].strip(), unquoted(into["target"])
            found.append(SqlElement(None, name, query, statement, target, line))
            continue
        begin = _AS.search(rest)
        query = "" if begin is None else rest[begin.end() :].strip()
        kind = _KINDS.get(word, Kind.VIEW)
        found.append(SqlElement(kind, name, query, statement, name if query else "", line))
    return found


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Cut at semicolons that are in no string, name or comment, each with the line that it begins at. Comments are
    left out, but for those that are hints for Spark."""
    part: list[str] = []
    line = first = 1
    pieces = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|[^'\"`;/-]+|."
    for piece in re.findall(pieces, text, re.DOTALL):
        if piece == ";":
            if "".join(part).strip():
                yield first, "".join(part).strip()
            part = []
        elif piece.startswith(("--", "/*")) and not piece.startswith("/*+"):
            part.append(" ")
        else:
            if not "".join(part).strip():
                first = line + piece[: len(piece) - len(piece.lstrip())].count("\n")
            part.append(piece)
        line += piece.count("\n")
    if "".join(part).strip():
        yield first, "".join(part).strip()


def unquoted(name: str) -> str:
    return name.replace("`", "")


def inputs_of(reads: Iterable[str], known: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Names that a plan reads, as the graph's: `spark_catalog.default.big` is `big`."""
    found: dict[str, None] = {}
    for name in reads:
        plain = unquoted(name)
        last = plain.rpartition(".")[2]
        found[plain if plain in known else last if last in known else plain] = None
    return tuple(found)

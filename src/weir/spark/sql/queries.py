"""A query: which tables it reads, where their names stand in its text, and what kind of query it is.

The text itself is Spark's. Only names of topics are replaced in it, by names of views; so whatever Spark's SQL can
say stays said as it was. Spark's own clause WATERMARK, which sqlglot does not know, is cut out before it looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from weir.model.errors import SqlError

_UNITS = ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR")
_VALUES = (TokenType.STRING, TokenType.NUMBER)
#: Functions that run code of the machine that runs the query.
_FORBIDDEN = ("reflect", "java_method", "try_reflect")
_HEADERS = "__headers"


@dataclass(frozen=True, slots=True)
class Table:
    """A name of a topic in a query, and where it stands. `alias_at`: where an alias goes, if it has none."""

    parts: tuple[str, ...]
    start: int
    end: int
    alias_at: int | None


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    tables: tuple[Table, ...] = ()
    #: Whether it asks for the headers of messages.
    headers: bool = False
    #: Whether it has groups, whose rows change as more comes.
    aggregates: bool = False
    watermarks: bool = False

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The tables, each once."""
        return list(dict.fromkeys(table.parts for table in self.tables))

    def reading(self, views: Mapping[tuple[str, ...], str]) -> str:
        """The text with views in place of those tables that have one."""
        edits: list[tuple[int, int, str]] = []
        for table in self.tables:
            view = views.get(table.parts)
            if view is None:
                continue
            edits.append((table.start, table.end, quoted(view)))
            if table.alias_at is not None:
                edits.append((table.alias_at, table.alias_at, f" AS {quoted(table.parts[-1])}"))
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def tokenize(sql: str) -> list[Token]:
    try:
        tokens = Spark().tokenize(sql)
    except SqlglotError as bad:
        raise SqlError(f"this is no SQL: {_first_line(bad)}") from None
    for at, (token, after) in enumerate(pairwise(tokens)):
        if token.token_type is TokenType.WINDOW and after.token_type is TokenType.L_PAREN:
            # Spark's function of that name, which sqlglot takes for the clause when it is in a GROUP BY.
            tokens[at] = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
    return tokens


def find_query(tokens: Sequence[Token], sql: str, *, safe: bool = False) -> Query:
    """The query that these tokens of `sql` are. `safe`: SqlError if it would run more than SQL."""
    if not tokens:
        raise SqlError("the query is missing")
    begin, end = tokens[0].start, tokens[-1].end + 1
    kept, clauses = _without_watermarks(tokens)
    try:
        trees = [tree for tree in Spark().parser().parse(list(kept), sql) if tree is not None]
    except SqlglotError as bad:
        raise SqlError(_first_line(bad)) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise SqlError("this is no query", hint="write SELECT ... or WITH ... SELECT ...")
    tree = trees[0]
    if safe:
        _check_safe(tree)
    return Query(
        text=sql[begin:end],
        tables=tuple(_tables(tree, clauses, begin)),
        headers=any(column.name.lower() == _HEADERS for column in tree.find_all(exp.Column)),
        aggregates=any(True for _ in tree.find_all(exp.Group, exp.AggFunc, exp.Distinct)),
        watermarks=bool(clauses),
    )


def _tables(tree: exp.Query, clauses: Mapping[int, int], begin: int) -> list[Table]:
    local = [
        node
        for scope in traverse_scope(tree)
        for node, source in scope.selected_sources.values()
        if isinstance(source, Scope)
    ]
    found = []
    for node in tree.find_all(exp.Table):
        parts = node.parts
        if not all(isinstance(part, exp.Identifier) for part in parts) or any(node is one for one in local):
            continue  # a function that gives rows, or a name that the query itself defines
        start, end = int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1
        alias_at = None if node.alias else clauses.get(end, end) - begin
        found.append(Table(tuple(part.name for part in parts), start - begin, end - begin, alias_at))
    return sorted(found, key=lambda table: table.start)


def _without_watermarks(tokens: Sequence[Token]) -> tuple[list[Token], dict[int, int]]:
    """The tokens without clauses `WATERMARK column DELAY OF INTERVAL ...`; and where those end, by where what they
    follow ends."""
    kept: list[Token] = []
    clauses: dict[int, int] = {}
    at = 0
    while at < len(tokens):
        length = _watermark(tokens[at:]) if kept else 0
        if length:
            clauses[kept[-1].end + 1] = tokens[at + length - 1].end + 1
            at += length
        else:
            kept.append(tokens[at])
            at += 1
    return kept, clauses


def _watermark(tokens: Sequence[Token]) -> int:
    """How many tokens such a clause takes; 0 if there is none."""
    words = [token.text.upper() for token in tokens]
    if words[:1] != ["WATERMARK"] or "DELAY" not in words:
        return 0
    delay = words.index("DELAY")
    if delay < 2 or words[delay : delay + 3] != ["DELAY", "OF", "INTERVAL"]:
        return 0
    at = delay + 3
    while at < len(tokens) and tokens[at].token_type in _VALUES:
        at += 1
        if at < len(tokens) and words[at].removesuffix("S") in _UNITS:
            at += 1
    return at if at > delay + 3 else 0


def _check_safe(tree: exp.Query) -> None:
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() in _FORBIDDEN:
            raise SqlError(f"{call.name} is not for streams", hint="the runner runs queries, not other code")


def _first_line(bad: SqlglotError) -> str:
    """What sqlglot says, without the colours of a terminal."""
    return str(bad).split("\n")[0].replace("\x1b[4m", "").replace("\x1b[0m", "")

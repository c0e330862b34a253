"""A query: which tables it reads, where their names stand in its text, and what kind of query it is.

The text itself is Spark's. Only names of topics are replaced in it, by names of views; so whatever Spark's SQL can
say stays said as it was. Spark's own clause WATERMARK, which sqlglot does not know, is cut out before it looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from weir.model.errors import SqlError
from weir.model.sql_streams import check_query_size, check_token_count
from weir.spark.sql.distinct import Distinct, find_distincts
from weir.spark.sql.table_options import TableOptions, without_options
from weir.spark.sql.tokens import BACKTICKS, SEE_DOCS
from weir.spark.sql.watermarks import without_watermarks

#: Columns of a table that are about a message, rather than in it: `*` leaves them out of what is shown.
TECHNICAL = (
    *("__key", "__offset", "__partition", "__topic", "__timestamp"),
    *("__raw_key", "__raw_value", "__headers", "__raw_corrupt"),
)
#: Functions that run code of the machine that runs the query; that make a name of a text; and decoders whose
#: options name files and addresses.
UNSAFE_FUNCTIONS = frozenset(
    (
        *("reflect", "java_method", "try_reflect", "identifier"),
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf", "from_xml", "schema_of_xml"),
    )
)
_HEADERS = "__headers"
#: Steps of the parser, at the most: where it guesses wrong it goes back, and nested guesses double the steps, so a
#: query of 150 characters would take hours. What is legal takes 1 to 8 steps for a token.
_STEPS, _STEPS_PER_TOKEN = 2_000, 20


class _BoundedParser(Spark().parser_class):  # type: ignore[misc]  # a class that the dialect names
    """Raises SqlError when the text takes too many steps."""

    _steps_left = _STEPS

    def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expression | None]:
        self._steps_left = _STEPS + _STEPS_PER_TOKEN * len(raw_tokens)
        found: list[exp.Expression | None] = super().parse(raw_tokens, sql)
        return found

    def _advance(self, times: int = 1) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise SqlError(
                "the query is too complex to parse",
                hint="give each JOIN its ON or USING, and do not nest calls of DECIMAL, DATE and other types",
            )
        super()._advance(times)


@dataclass(frozen=True, slots=True)
class Table:
    """A name of a topic in a query, and where it stands, with its WITH (...). `alias_at`: where an alias goes, if
    it has none."""

    parts: tuple[str, ...]
    start: int
    end: int
    alias_at: int | None
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Star:
    """A `*`, with so many columns that are named before it and after it. `within`: those that parts of the query
    name in what they select."""

    before: int
    after: int
    within: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    tables: tuple[Table, ...] = ()
    #: Whether it asks for the headers of messages.
    headers: bool = False
    #: Whether it has groups, whose rows change as more comes.
    aggregates: bool = False
    watermarks: bool = False
    #: Parts of it, or all, that are without duplicates.
    distincts: tuple[Distinct, ...] = ()
    #: If it selects by `*`.
    star: Star | None = None
    #: Whether a process with more rights than the author of the text runs it: Spark's reading is checked, too.
    safe: bool = False

    @classmethod
    def of(cls, text: str, *, safe: bool = False) -> "Query":
        """The query that this text is."""
        return find_query(tokenize(text), text, safe=safe)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The tables, each once."""
        return list(dict.fromkeys(table.parts for table in self.tables))

    def visible(self, columns: Sequence[str]) -> list[int]:
        """Which of its columns are shown, by their places: of those that `*` stands for, no technical ones."""
        star = self.star
        if star is None:
            return list(range(len(columns)))
        hidden = [name for name in TECHNICAL if name not in star.within]
        return [
            at
            for at, name in enumerate(columns)
            if at < star.before or at >= len(columns) - star.after or name.lower() not in hidden
        ]

    @property
    def options(self) -> dict[tuple[str, ...], dict[str, str]]:
        """What WITH (...) says of each table."""
        return {table.parts: dict(table.options) for table in self.tables}

    @property
    def distinct(self) -> Distinct | None:
        """All of it, if that is without duplicates."""
        first = self.distincts[0] if self.distincts else None
        return first if first is not None and (first.start, first.end) == (0, len(self.text)) else None

    def reading(self, names: Mapping[tuple[str, ...], str], parts: Mapping[Distinct, str] | None = None) -> str:
        """The text with those names in place of tables that have one, and in place of queries within it."""
        done = parts or {}
        edits = [(part.start, part.end, f"SELECT * FROM {name}") for part, name in done.items()]
        for table in self.tables:
            name = names.get(table.parts)
            if name is None or any(part.start <= table.start < part.end for part in done):
                continue
            edits.append((table.start, table.end, name))
            if table.alias_at is not None:
                edits.append((table.alias_at, table.alias_at, f" AS {quoted(table.parts[-1])}"))
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def where(self, views: Mapping[str, str], *, safe: bool = False) -> "Query":
        """The query with the texts of views in place of their names."""
        known = [parts for parts in self.names if len(parts) == 1 and parts[0].lower() in views]
        if not known:
            return self
        text = self.reading({parts: f"({views[parts[0].lower()]})" for parts in known})
        return Query.of(text, safe=safe)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def tokenize(sql: str) -> list[Token]:
    try:
        tokens = Spark().tokenize(sql)
    except SqlglotError as bad:
        raise SqlError(f"this is no SQL: {_first_line(bad)}", hint="close what a quote or /* opens") from None
    for at, (token, after) in enumerate(pairwise(tokens)):
        if token.token_type is TokenType.WINDOW and after.token_type is TokenType.L_PAREN:
            # Spark's function of that name, which sqlglot takes for the clause when it is in a GROUP BY.
            tokens[at] = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
    return tokens


def find_query(tokens: Sequence[Token], sql: str, *, safe: bool = False) -> Query:
    """The query that these tokens of `sql` are. `safe`: SqlError if it would run more than SQL, or is larger than
    a stored query may be."""
    if safe and tokens:
        check_query_size(sql[tokens[0].start : tokens[-1].end + 1])
        check_token_count(len(tokens))  # as the parser counts, which ends some comments elsewhere
    try:
        return _found(tokens, sql, safe=safe)
    except RecursionError:
        raise SqlError("the query is nested too deeply") from None
    except SqlglotError as bad:
        raise _not_understood(bad) from None


def _found(tokens: Sequence[Token], sql: str, *, safe: bool) -> Query:
    if not tokens:
        raise SqlError("the query is missing")
    begin, end = tokens[0].start, tokens[-1].end + 1
    bare, given = without_options(tokens)
    kept, clauses = without_watermarks(bare)
    trees = [tree for tree in _BoundedParser(dialect=Spark()).parse(list(kept), sql) if tree is not None]
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise SqlError("this is no query", hint="write SELECT ... or WITH ... SELECT ...")
    tree = trees[0]
    if safe:
        _check_safe(tree, tokens)
    text = sql[begin:end]
    distincts = tuple(find_distincts(moved(tokens, -begin), text))
    return Query(
        text=text,
        tables=tuple(_tables(tree, clauses, given, begin)),
        headers=any(column.name.lower() == _HEADERS for column in tree.find_all(exp.Column)),
        aggregates=_aggregates(tree, done=bool(distincts)),
        watermarks=bool(clauses),
        distincts=distincts,
        star=_star(tree),
        safe=safe,
    )


def _star(tree: exp.Query) -> Star | None:
    selected = [one.is_star for one in tree.selects]
    if True not in selected:
        return None
    within = {
        one.alias_or_name.lower()
        for select in tree.find_all(exp.Select)
        for one in select.expressions
        if not one.is_star and not any(one is own for own in tree.selects)
    }
    return Star(selected.index(True), selected[::-1].index(True), frozenset(within))


def _tables(
    tree: exp.Query, clauses: Mapping[int, int], given: Mapping[int, TableOptions], begin: int
) -> list[Table]:
    local = {
        id(node)
        for scope in traverse_scope(tree)
        for node, source in scope.selected_sources.values()
        if isinstance(source, Scope)
    }
    found = []
    for node in tree.find_all(exp.Table):
        parts = node.parts
        if not all(isinstance(part, exp.Identifier) for part in parts) or id(node) in local:
            continue  # a function that gives rows, or a name that the query itself defines
        start, end = int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1
        options = given.get(end)
        over = end if options is None else options.end
        alias_at = None if node.alias else clauses.get(end, over) - begin
        values = () if options is None else options.values
        found.append(Table(tuple(part.name for part in parts), start - begin, over - begin, alias_at, values))
    _check_options(found)
    return sorted(found, key=lambda table: table.start)


def _check_options(tables: Sequence[Table]) -> None:
    first: dict[tuple[str, ...], Table] = {}
    for table in tables:
        if first.setdefault(table.parts, table).options != table.options:
            raise SqlError(f"{'.'.join(table.parts)} is read in two ways", hint="write the same WITH (...) twice")


def _aggregates(tree: exp.Query, *, done: bool) -> bool:
    """Whether its rows change. `done`: its DISTINCT is not left to Spark."""
    kinds = (exp.Group, exp.AggFunc) if done else (exp.Group, exp.AggFunc, exp.Distinct)
    return any(True for _ in tree.find_all(*kinds))


def moved(tokens: Sequence[Token], by: int) -> list[Token]:
    """The same tokens for a text of which some was cut off, or put before it."""
    return [
        Token(one.token_type, one.text, one.line, one.col, one.start + by, one.end + by, one.comments)
        for one in tokens
    ]


def _check_safe(tree: exp.Query, tokens: Sequence[Token]) -> None:
    """SqlError if it would run code, or read other than topics, where it runs. `plan_safety` checks what Spark
    makes of it, too."""
    for token, after in pairwise(tokens):
        if token.text.lower() in UNSAFE_FUNCTIONS and after.token_type is TokenType.L_PAREN:
            raise _unsafe(token.text)
    if next(tree.find_all(exp.QueryTransform), None) is not None:
        raise _unsafe("TRANSFORM ... USING")


def _unsafe(what: str) -> SqlError:
    return SqlError(f"{what} is not for streams and replays", hint="their process runs SQL, not other code")


def check_condition(text: str) -> None:
    """SqlError if a condition would run code, or read files, where it is evaluated."""
    sql = f"SELECT 1 FROM messages WHERE {text}"
    for parts in find_query(tokenize(sql), sql, safe=True).names:
        if len(parts) > 1:
            raise SqlError(f"a condition reads the messages alone, and not {'.'.join(parts)}")


def _not_understood(bad: SqlglotError) -> SqlError:
    """What sqlglot does not understand, and where."""
    if not isinstance(bad, ParseError) or not bad.errors:
        return SqlError(_first_line(bad), hint=SEE_DOCS)
    first = bad.errors[0]
    said, here, after = (str(first.get(name) or "") for name in ("description", "highlight", "end_context"))
    if said.startswith(("Required", "Expecting")):
        missing = said.removeprefix("Expecting ") if said.startswith("Expecting") else "something"
        return SqlError(f"{missing} is missing at line {first.get('line')}, after {here!r}", hint=SEE_DOCS)
    near = (here + after)[:40].split("\n")[0]
    return SqlError(
        f"this is not understood at line {first.get('line')}, near {near!r}",
        hint=BACKTICKS if here == "-" else SEE_DOCS,
    )


def _first_line(bad: SqlglotError) -> str:
    """What sqlglot says, without the colours of a terminal."""
    return str(bad).split("\n")[0].replace("\x1b[4m", "").replace("\x1b[0m", "")

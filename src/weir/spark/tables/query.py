"""A query: which tables it reads, where their names stand in its text, and what kind of query it is.

The text itself is Spark's. Only names of topics are replaced in it, by names of views; so whatever Spark's SQL can
say stays said as it was. Spark's own clause WATERMARK, which sqlglot does not know, is cut out before it looks.

SELECT DISTINCT, also `DISTINCT ON (...)`: where it stands in a query.

Spark's SQL cannot say by which columns rows are the same, and in a stream it takes DISTINCT for groups, whose rows
are written again whenever one is seen again. So the words are cut out here, and Spark's `dropDuplicates` does it.

A statement's tokens, taken one after the other.

Spark's clause `WITH (name = value, ...)` after a table in a query: how its values are read.

Spark's clause `WATERMARK column DELAY OF INTERVAL ...` after a table, which sqlglot does not know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from weir.model.definitions import check_query_size, check_token_count
from weir.model.errors import SqlError

BACKTICKS, SEE_DOCS = "put names with other characters into `backticks`", "see docs/reference/sql.md"


class Tokens:
    """A place among the tokens of one statement."""

    def __init__(self, tokens: Sequence[Token], sql: str) -> None:
        self._tokens = tokens
        self._sql = sql
        self._at = 0

    @property
    def first(self) -> Token:
        """The first of the statement, taken or not."""
        return self._tokens[0]

    @property
    def rest(self) -> Sequence[Token]:
        return self._tokens[self._at :]

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    def words(self, *words: str) -> bool:
        """Whether these are the next words; then they are taken."""
        found = [token.text.upper() for token in self._tokens[self._at : self._at + len(words)]]
        quoted = any(token.token_type in (TokenType.IDENTIFIER, TokenType.STRING) for token in self.rest[:1])
        if found != list(words) or quoted:
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.words(*words):
            raise self.wrong(f"{' '.join(words)} is missing")

    def symbol(self, kind: TokenType) -> bool:
        if self.done or self._tokens[self._at].token_type is not kind:
            return False
        self._at += 1
        return True

    def take(self, what: str) -> Token:
        if self.done:
            raise self.wrong(f"{what} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def name(self, what: str) -> tuple[str, ...]:
        """One to three words with dots between them."""
        parts = [self._part(what)]
        while self.symbol(TokenType.DOT):
            parts.append(self._part(what))
        if len(parts) > 3:
            raise self.wrong(f"{'.'.join(parts)} has too many parts", hint="write tenant.namespace.topic")
        return tuple(parts)

    def _part(self, what: str) -> str:
        token = self.take(what)
        if token.token_type is not TokenType.IDENTIFIER and not token.text.isidentifier():
            self._at -= 1
            raise self.wrong(f"{what} is missing", hint=BACKTICKS)
        return token.text

    def end(self) -> None:
        """That was all."""
        if not self.done:
            raise self.wrong("the statement should end here")

    def wrong(self, what: str, *, hint: str = SEE_DOCS) -> SqlError:
        """An error at this place."""
        if self.done:
            return SqlError(f"{what} at the end", hint=hint)
        token = self._tokens[self._at]
        if token.token_type is TokenType.DASH:
            hint = BACKTICKS
        near = self._sql[token.start : token.start + 40].split("\n")[0]
        return SqlError(f"{what} at line {token.line}, near {near!r}", hint=hint)


_UNITS = ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR")
_VALUES = (TokenType.STRING, TokenType.NUMBER)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How many tokens the clause has; and its column as the query can name it."""

    length: int
    column: str


def watermark_at(tokens: Sequence[Token], at: int) -> Watermark | None:
    """The clause that begins there, if one does."""
    if not at or tokens[at].text.upper() != "WATERMARK":
        return None
    words = [token.text.upper() for token in tokens[at:]]
    delay = words.index("DELAY") if "DELAY" in words else 0
    if delay < 2 or words[delay : delay + 3] != ["DELAY", "OF", "INTERVAL"]:
        return None
    end = first = delay + 3
    while at + end < len(tokens) and tokens[at + end].token_type in _VALUES:
        end += 1
        if end < len(words) and words[end].removesuffix("S") in _UNITS:
            end += 1
    if end == first:
        return None
    table = _alias(tokens, at, at + end)
    column = f"`{tokens[at + delay - 1].text}`"
    return Watermark(end, column if table is None else f"`{table}`.{column}")


def _alias(tokens: Sequence[Token], begin: int, end: int) -> str | None:
    """What the table of a clause is called: by what follows the clause, else by what it follows."""
    if end < len(tokens) and tokens[end].token_type is TokenType.ALIAS:
        end += 1
    for at in (end, begin - 1):
        if at < len(tokens) and tokens[at].token_type in _NAMES:
            return tokens[at].text
    return None


def without_watermarks(tokens: Sequence[Token]) -> tuple[list[Token], dict[int, int]]:
    """The tokens without such clauses; and where those end, by where what they follow ends."""
    kept: list[Token] = []
    clauses: dict[int, int] = {}
    at = 0
    while at < len(tokens):
        found = watermark_at(tokens, at)
        if found is not None:
            clauses[kept[-1].end + 1] = tokens[at + found.length - 1].end + 1
            at += found.length
        else:
            kept.append(tokens[at])
            at += 1
    return kept, clauses


#: What becomes of a message whose value is not as the schema says: the query fails; its text goes into a column;
#: it is left out; it is left out, and a stream writes it into a topic of its own.
FAILFAST, PERMISSIVE, DROPMALFORMED, DEADLETTER = "FAILFAST", "PERMISSIVE", "DROPMALFORMED", "DEADLETTER"
MODES = (FAILFAST, PERMISSIVE, DROPMALFORMED, DEADLETTER)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Where the clause ends in the text, and what it says."""

    end: int
    values: tuple[tuple[str, str], ...]


def without_options(tokens: Sequence[Token]) -> tuple[list[Token], dict[int, TableOptions]]:
    """The tokens without such clauses; and what they say, by where the names that they follow end."""
    kept: list[Token] = []
    found: dict[int, TableOptions] = {}
    at = 0
    while at < len(tokens):
        if not _begins(tokens, at):
            kept.append(tokens[at])
            at += 1
            continue
        end = next((i for i in range(at, len(tokens)) if tokens[i].token_type is TokenType.R_PAREN), None)
        if end is None:
            raise SqlError("WITH ( is not closed", hint="write WITH (mode = 'PERMISSIVE')")
        found[kept[-1].end + 1] = TableOptions(tokens[end].end + 1, _read(tokens[at + 2 : end]))
        at = end + 1
    return kept, found


def _begins(tokens: Sequence[Token], at: int) -> bool:
    """WITH and a parenthesis after a name: before a query, a name follows WITH."""
    if not at or at + 1 >= len(tokens) or tokens[at].token_type is not TokenType.WITH:
        return False
    before = tokens[at - 1]
    named = before.token_type in _NAMES or before.text.isidentifier()
    return named and tokens[at + 1].token_type is TokenType.L_PAREN


def _read(tokens: Sequence[Token]) -> tuple[tuple[str, str], ...]:
    at = Tokens(tokens, "")
    found: dict[str, str] = {}
    while not found or at.symbol(TokenType.COMMA):
        name = at.take("an option").text.lower()
        if not at.symbol(TokenType.EQ):
            raise SqlError(f"= is missing after {name}", hint=f"write {name} = '...'")
        value = at.take(f"the value of {name}").text.upper()
        if name != "mode":
            raise SqlError(f"a table has no option {name}", hint="there is mode")
        if value not in (FAILFAST, PERMISSIVE, DROPMALFORMED):
            raise SqlError(
                f"mode is {value!r}", hint="write FAILFAST, PERMISSIVE or DROPMALFORMED; DEADLETTER is for streams"
            )
        found[name] = value
    if not at.done:
        raise SqlError("a comma or ) is missing in WITH (...)")
    return tuple(found.items())


_SETS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)
_AFTER = (TokenType.ORDER_BY, TokenType.SORT_BY, TokenType.LIMIT, TokenType.FETCH)
#: What the expressions of ON, and the time by which the watermark goes, are called on the way.
KEY, TIME = "__weir_on_", "__weir_time"


@dataclass(frozen=True, slots=True)
class Distinct:
    """A query without duplicates within another, from `start` to `end` of its text; or all of it."""

    start: int
    end: int
    #: Its text up to SELECT, and from its columns on.
    head: str
    tail: str
    #: By which its rows are the same; none: by all columns.
    on: tuple[str, ...] = ()
    #: The column of its watermark, if there is one and no more.
    time: str | None = None

    def text(self, *, time: bool = False) -> str:
        """The query without DISTINCT, with columns for what its rows are the same by. `time`: and with the time
        by which duplicates are forgotten."""
        extra = [f"({one}) AS {KEY}{at}" for at, one in enumerate(self.on)]
        extra += [f"{self.time} AS {TIME}"] if time and self.time is not None else []
        return f"{self.head} {''.join(f'{one}, ' for one in extra)}{self.tail}"


@dataclass(slots=True)
class _Level:
    """What stands between two parentheses, by places among the tokens."""

    begin: int
    selects: list[int] = field(default_factory=list)
    source: int = -1
    #: What cannot be together with DISTINCT ON in one query.
    unfit: str = ""
    watermarks: list[Watermark] = field(default_factory=list)


def find_distincts(tokens: Sequence[Token], sql: str) -> list[Distinct]:
    """Those that are not within another. SqlError if DISTINCT ON stands where it cannot."""
    found: list[Distinct] = []
    levels = [_Level(0)]
    for at, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            levels.append(_Level(at + 1))
        elif token.token_type is TokenType.R_PAREN and len(levels) > 1:
            found += _ended(levels.pop(), at, tokens, sql)
        else:
            _note(levels[-1], at, tokens)
    found += _ended(levels[0], len(tokens), tokens, sql)
    return [one for one in found if not any(_within(one, other) for other in found)]


def _note(level: _Level, at: int, tokens: Sequence[Token]) -> None:
    kind = tokens[at].token_type
    if kind is TokenType.SELECT:
        level.selects.append(at)
    elif kind is TokenType.FROM:
        level.source = at
    elif kind in _SETS or (kind in _AFTER and level.source >= 0):
        level.unfit = tokens[at].text.upper()
    elif (watermark := watermark_at(tokens, at)) is not None:
        level.watermarks.append(watermark)


def _within(one: Distinct, other: Distinct) -> bool:
    return one is not other and other.start <= one.start and one.end <= other.end


def _ended(level: _Level, end: int, tokens: Sequence[Token], sql: str) -> list[Distinct]:
    for select in level.selects:
        after = [token.token_type for token in tokens[select + 1 : select + 4]]
        if after[:1] != [TokenType.DISTINCT]:
            continue
        named = after[1:] == [TokenType.ON, TokenType.L_PAREN]
        fits = len(level.selects) == 1 and level.source > select and not level.unfit
        if fits:
            return [_distinct(level, select, end, tokens, sql, named=named)]
        if named:
            raise SqlError(
                f"DISTINCT ON goes with FROM, and not with {level.unfit or 'another SELECT'} beside it",
                hint="write SELECT ... FROM (SELECT DISTINCT ON (...) ... FROM ...) AS x",
            )
    return []


def _distinct(level: _Level, select: int, end: int, tokens: Sequence[Token], sql: str, *, named: bool) -> Distinct:
    begin, columns = tokens[level.begin].start, select + 2
    on: list[str] = []
    if named:
        columns, on = _expressions(tokens, select + 4, sql)
    last = tokens[end - 1].end + 1
    return Distinct(
        start=begin,
        end=last,
        head=sql[begin : tokens[select].end + 1],
        tail=sql[tokens[columns].start : last],
        on=tuple(on),
        time=level.watermarks[0].column if len(level.watermarks) == 1 else None,
    )


def _expressions(tokens: Sequence[Token], at: int, sql: str) -> tuple[int, list[str]]:
    """The texts between commas up to the closing parenthesis, and the place after it."""
    found, depth, begin = [], 0, at
    while at < len(tokens):
        kind = tokens[at].token_type
        if depth == 0 and kind in (TokenType.COMMA, TokenType.R_PAREN):
            if at == begin:
                break
            found.append(sql[tokens[begin].start : tokens[at - 1].end + 1])
            begin = at + 1
            if kind is TokenType.R_PAREN:
                return at + 1, found
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(kind, 0)
        at += 1
    raise SqlError("DISTINCT ON (...) names no columns", hint="write SELECT DISTINCT ON (id) ...")


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

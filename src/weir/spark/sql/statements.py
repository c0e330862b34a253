"""The statements of `weir sql`: its own, and queries, which are Spark's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from sqlglot import Token, TokenType

from weir.model.errors import SqlError
from weir.spark.sql.queries import Query, find_query, tokenize
from weir.spark.sql.tokens import Tokens

#: What WITH (...) of a stream takes, by its name in small letters.
OPTIONS = {
    name.lower(): name
    for name in ("mode", "start", "trigger", "maxOffsetsPerTrigger", "partitions", "failOnDataLoss")
}
_MODES = ("append", "update", "complete")
_STARTS = ("earliest", "latest")

Name = tuple[str, ...]


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
class ShowTables:
    pass


@dataclass(frozen=True, slots=True)
class DescribeStream:
    name: Name


@dataclass(frozen=True, slots=True)
class DescribeTable:
    name: Name


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
    """Anything else, for Spark as it is."""

    text: str


Statement = (
    CreateStream
    | ShowStreams
    | ShowTables
    | DescribeStream
    | DescribeTable
    | PauseStream
    | ResumeStream
    | DropStream
    | SelectStream
    | Select
    | Other
)


def parse(sql: str) -> list[Statement]:
    """All statements of a text; SqlError says where one is wrong."""
    return [_statement(tokens, sql) for tokens in split(sql)]


def split(sql: str) -> Iterator[list[Token]]:
    """The tokens of each statement."""
    tokens: list[Token] = []
    for token in tokenize(sql):
        if token.token_type is not TokenType.SEMICOLON:
            tokens.append(token)
        elif tokens:
            yield tokens
            tokens = []
    if tokens:
        yield tokens


def is_complete(sql: str) -> bool:
    """Whether a text ends with a whole statement."""
    try:
        tokens = tokenize(sql)
    except SqlError:
        return False
    return not tokens or tokens[-1].token_type is TokenType.SEMICOLON


def _statement(tokens: Sequence[Token], sql: str) -> Statement:
    at = Tokens(tokens, sql)
    for words, build in _OWN.items():
        if at.words(*words):
            return build(at, sql)
    return _spark(tokens, sql)


def _create(at: Tokens, sql: str) -> Statement:
    lenient = at.words("IF", "NOT", "EXISTS")
    name = at.name("the name of the stream")
    options = _options(at) if at.words("WITH") else {}
    at.expect("AS")
    query = find_query(at.rest, sql, safe=True)
    if not query.tables:
        raise SqlError("a stream reads topics, and this query names none")
    return CreateStream(name, query, options, lenient)


def _options(at: Tokens) -> dict[str, str]:
    found: dict[str, str] = {}
    if not at.symbol(TokenType.L_PAREN):
        raise at.wrong("( is missing", hint="write WITH (mode = 'update', ...)")
    while True:
        given = at.take("an option").text
        name = OPTIONS.get(given.lower())
        if name is None:
            near = get_close_matches(given.lower(), OPTIONS, 1)
            known = f"did you mean {OPTIONS[near[0]]}?" if near else f"there are {', '.join(OPTIONS.values())}"
            raise SqlError(f"a stream has no option {given}", hint=known)
        if not at.symbol(TokenType.EQ):
            raise at.wrong("= is missing", hint=f"write {name} = '...'")
        found[name] = at.take(f"the value of {name}").text
        if at.symbol(TokenType.R_PAREN):
            break
        if not at.symbol(TokenType.COMMA):
            raise at.wrong("a comma or ) is missing")
    _check_option(found, "mode", _MODES)
    _check_option(found, "start", _STARTS)
    for name in ("maxOffsetsPerTrigger", "partitions"):
        if name in found and not (found[name].isdigit() and int(found[name])):
            raise SqlError(f"{name} is {found[name]!r}", hint="write a number, 1 or more")
    return found


def _check_option(options: dict[str, str], name: str, words: tuple[str, ...]) -> None:
    if name not in options:
        return
    options[name] = options[name].lower()
    if options[name] not in words:
        raise SqlError(f"{name} is {options[name]!r}", hint=f"write one of {', '.join(words)}")


def _show_streams(at: Tokens, sql: str) -> Statement:
    at.end()
    return ShowStreams()


def _show_tables(at: Tokens, sql: str) -> Statement:
    at.end()
    return ShowTables()


def _named(kind: Callable[[Name], Statement]) -> Callable[[Tokens, str], Statement]:
    def build(at: Tokens, sql: str) -> Statement:
        name = at.name("a name")
        at.end()
        return kind(name)

    return build


def _drop(at: Tokens, sql: str) -> Statement:
    lenient = at.words("IF", "EXISTS")
    name = at.name("the name of the stream")
    at.end()
    return DropStream(name, lenient)


def _spark(tokens: Sequence[Token], sql: str) -> Statement:
    """A query, maybe a live one or one to be explained; or something else."""
    first = tokens[0].text.upper()
    if first == "EXPLAIN" and len(tokens) == 2:  # sqlglot leaves the rest of it as one text
        rest = tokens[1].text
        words = tokenize(rest)
        begin = next((i for i, one in enumerate(words) if one.text.upper() in ("SELECT", "WITH", "FROM")), 0)
        return Select(find_query(words[begin:], rest), f"EXPLAIN {rest[: words[begin].start]}")
    live = _live(tokens)
    if live is not None:
        word = tokens[live]
        blank = sql[: word.start] + " " * len(word.text) + sql[word.end + 1 :]
        return SelectStream(find_query([*tokens[:live], *tokens[live + 1 :]], blank))
    if first in ("SELECT", "WITH", "FROM", "VALUES", "("):
        return Select(find_query(tokens, sql))
    return Other(sql[tokens[0].start : tokens[-1].end + 1])


def _live(tokens: Sequence[Token]) -> int | None:
    """Where STREAM follows the query's own SELECT, not as the name of a column."""
    depth = 0
    for at, token in enumerate(tokens[:-2]):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth or token.token_type is not TokenType.SELECT:
            continue
        word, after = tokens[at + 1], tokens[at + 2]
        named = after.token_type in (TokenType.COMMA, TokenType.FROM, TokenType.DOT, TokenType.ALIAS)
        if word.token_type is TokenType.VAR and word.text.upper() == "STREAM" and not named:
            return at + 1
        return None
    return None


_OWN: dict[tuple[str, ...], Callable[[Tokens, str], Statement]] = {
    ("CREATE", "STREAM"): _create,
    ("SHOW", "STREAMS"): _show_streams,
    ("SHOW", "TABLES"): _show_tables,
    ("SHOW", "TOPICS"): _show_tables,
    ("DESCRIBE", "STREAM"): _named(DescribeStream),
    ("DESC", "STREAM"): _named(DescribeStream),
    ("DESCRIBE", "TABLE"): _named(DescribeTable),
    ("DESCRIBE",): _named(DescribeTable),
    ("DESC",): _named(DescribeTable),
    ("PAUSE", "STREAM"): _named(PauseStream),
    ("RESUME", "STREAM"): _named(ResumeStream),
    ("DROP", "STREAM"): _drop,
}

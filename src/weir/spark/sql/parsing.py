"""Texts become statements: Weir's own by their first words, and everything else as Spark has it.

What `WITH (...)` of a stream takes.

REPLAY topic [FROM t] [TO t] [WHERE condition] INTO [SUBSCRIPTION|TOPIC] name [RATE n] [DRY RUN].
"""

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from msgspec import DecodeError, json
from sqlglot import Token, TokenType

from weir.model.definitions import Replay
from weir.model.errors import SqlError
from weir.spark.sql import statements as s
from weir.spark.tables.names import topic_named
from weir.spark.tables.query import DEADLETTER, FAILFAST, MODES, Query, Tokens, find_query, moved, tokenize

_SUBSCRIPTION = "subscription:"
#: Words in quotes are no words of the statement.
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


def replay_messages(at: Tokens, sql: str) -> s.Statement:
    name = at.name("the topic")
    since = until = None
    if at.words("FROM"):
        since = _moment(at)
    if at.words("TO"):
        until = _moment(at)
    where = _condition(at, sql) if at.words("WHERE") else ""
    at.expect("INTO")
    kind = _SUBSCRIPTION if at.words("SUBSCRIPTION") else "topic:" if at.words("TOPIC") else ""
    parts = at.name("a subscription, or a topic")
    into = parts[0] if len(parts) == 1 else ".".join(parts) if kind == _SUBSCRIPTION else _topic(parts)
    rate = 0
    if at.words("RATE"):
        text = at.take("messages per second").text
        if not text.isdigit() or not int(text):
            raise at.wrong(f"RATE is {text!r}", hint="write messages per second")
        rate = int(text)
    dry_run = at.words("DRY", "RUN")
    at.end()
    return s.ReplayMessages(name, f"{kind}{into}", where, since, until, rate, dry_run)


def _moment(at: Tokens) -> str:
    found = at.take("a moment")
    if found.token_type not in (TokenType.STRING, TokenType.NUMBER):
        raise SqlError(
            f"a moment is a text, and {found.text} is none", hint="write '2026-11-16T08:00:00Z' or '-2h'"
        )
    return found.text


def _topic(parts: tuple[str, ...]) -> str:
    """As the command is told."""
    return str(topic_named(parts)).partition("://")[2]


def _condition(at: Tokens, sql: str) -> str:
    """All before the INTO that stands in no parentheses."""
    depth, tokens = 0, []
    while not at.done:
        token = at.rest[0]
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if not depth and token.text.upper() == "INTO" and token.token_type not in _QUOTED:
            break
        tokens.append(at.take("a condition"))
    if not tokens:
        raise at.wrong("the condition is missing")
    return sql[tokens[0].start : tokens[-1].end + 1]


def count_replay(at: Tokens, sql: str) -> s.Statement:
    """What is asked for is no text among others here: nothing in a condition can end it."""
    found = at.take("what is asked for").text
    at.end()
    try:
        return s.CountReplay(json.decode(b64decode(found), type=Replay))
    except (ValueError, DecodeError):
        raise at.wrong("this is not what the command `weir replay --dry-run` asks") from None


def select_replay(at: Tokens, sql: str) -> s.Statement:
    found = at.take("the id of a replay").text
    at.end()
    return s.SelectReplay(found)


#: By their names in small letters.
OPTIONS = {
    name.lower(): name
    for name in (
        *("mode", "outputMode", "start", "trigger", "maxOffsetsPerTrigger", "partitions", "failOnDataLoss"),
        "dead_letter_topic",
    )
} | {"deadlettertopic": "dead_letter_topic"}
_OUTPUTS = ("append", "update", "complete")
_STARTS = ("earliest", "latest")


def read_options(at: Tokens) -> dict[str, str]:
    """From the parenthesis on. SqlError says which one is wrong, and what to write."""
    found: dict[str, str] = {}
    if not at.symbol(TokenType.L_PAREN):
        raise at.wrong("( is missing", hint="write WITH (mode = 'update', ...)")
    while True:
        name = _name(at.take("an option").text)
        if not at.symbol(TokenType.EQ):
            raise at.wrong("= is missing", hint=f"write {name} = '...'")
        found[name] = at.take(f"the value of {name}").text
        if at.symbol(TokenType.R_PAREN):
            break
        if not at.symbol(TokenType.COMMA):
            raise at.wrong("a comma or ) is missing")
    _check_modes(found)
    _check_word(found, "start", _STARTS)
    _check_word(found, "failOnDataLoss", ("true", "false"))
    for name in ("maxOffsetsPerTrigger", "partitions"):
        if name in found and not (found[name].isdigit() and int(found[name])):
            raise SqlError(f"{name} is {found[name]!r}", hint="write a number, 1 or more")
    return found


def output_mode(options: Mapping[str, str]) -> str | None:
    """How rows are written, if that was said: `mode` may say it, too, in small letters."""
    mode = options.get("mode", "")
    return options.get("outputMode") or (mode if mode in _OUTPUTS else None)


def poison_mode(options: Mapping[str, str]) -> str:
    """What becomes of messages whose values are not as their schema says."""
    mode = options.get("mode", "")
    if "dead_letter_topic" in options:
        return DEADLETTER
    return mode if mode in MODES else FAILFAST


def _check_modes(found: dict[str, str]) -> None:
    _check_word(found, "outputMode", _OUTPUTS)
    if "mode" not in found:
        return
    mode = found["mode"]
    if mode.lower() in _OUTPUTS:
        found["mode"] = mode.lower()
        if found.get("outputMode", found["mode"]) != found["mode"]:
            raise SqlError(f"mode is {mode!r}, and outputMode {found['outputMode']!r}", hint="write one of them")
    elif mode.upper() in MODES:
        found["mode"] = mode.upper()
        if "dead_letter_topic" in found and found["mode"] != DEADLETTER:
            raise SqlError(f"dead_letter_topic goes with mode = 'DEADLETTER', not {mode!r}")
    else:
        words = ", ".join((*_OUTPUTS, *MODES))
        raise SqlError(f"mode is {mode!r}", hint=f"write one of {words}")


def _name(given: str) -> str:
    name = OPTIONS.get(given.lower())
    if name is None:
        near = get_close_matches(given.lower(), OPTIONS, 1)
        known = f"did you mean {OPTIONS[near[0]]}?" if near else f"there are {', '.join(OPTIONS.values())}"
        raise SqlError(f"a stream has no option {given}", hint=known)
    return name


def _check_word(options: dict[str, str], name: str, words: tuple[str, ...]) -> None:
    if name not in options:
        return
    options[name] = options[name].lower()
    if options[name] not in words:
        raise SqlError(f"{name} is {options[name]!r}", hint=f"write one of {', '.join(words)}")


_QUERY = ("SELECT", "WITH", "FROM", "VALUES", "(")
#: Of Spark's statements, those that may end with a query.
_WITH_QUERY = ("CREATE", "INSERT", "CACHE")


@dataclass(frozen=True, slots=True)
class Placed:
    """A statement, and where it stands: which one it is, and its first line, both from 1."""

    statement: s.Statement
    number: int
    line: int


def parse(sql: str) -> list[s.Statement]:
    """All statements of a text; SqlError says where one is wrong."""
    return [one.statement for one in parse_script(sql)]


def parse_script(sql: str) -> list[Placed]:
    """The same, and where they stand."""
    return [Placed(_statement(tokens, sql), number, tokens[0].line) for number, tokens in enumerate(split(sql), 1)]


def parse_name(text: str) -> s.Name:
    """A name of a topic or stream, as statements have them."""
    at = Tokens(tokenize(text), text)
    name = at.name("a name")
    at.end()
    return name


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


def _statement(tokens: Sequence[Token], sql: str) -> s.Statement:
    at = Tokens(*_opened(tokens, sql))
    for words, build in _OWN.items():
        if at.words(*words):
            return build(at, sql)
    return _spark(tokens, sql)


def _opened(tokens: Sequence[Token], sql: str) -> tuple[Sequence[Token], str]:
    """What follows SHOW, which sqlglot leaves as one text, as tokens; and the text that they are of."""
    if tokens[0].token_type is not TokenType.SHOW or len(tokens) != 2:
        return tokens, sql
    text = f"{tokens[0].text} {tokens[1].text}"
    return [tokens[0], *moved(tokenize(tokens[1].text), len(tokens[0].text) + 1)], text


# --- Weir's own ---------------------------------------------------------------------------------------------


def _create_stream(at: Tokens, sql: str) -> s.Statement:
    lenient = at.words("IF", "NOT", "EXISTS")
    name = at.name("the name of the stream")
    options = read_options(at) if at.words("WITH") else {}
    at.expect("AS")
    query = find_query(_without_emit(at.rest), sql, safe=True)
    if not query.tables:
        raise SqlError("a stream reads topics, and this query names none")
    return s.CreateStream(name, query, options, lenient)


def _show_streams(at: Tokens, sql: str) -> s.Statement:
    at.end()
    return s.ShowStreams()


def _show_replays(at: Tokens, sql: str) -> s.Statement:
    at.end()
    return s.ShowReplays()


def _watch_streams(at: Tokens, sql: str) -> s.Statement:
    at.end()
    return s.Watch(s.ShowStreams())


def _show_tables(at: Tokens, sql: str) -> s.Statement:
    namespace = at.name("the namespace") if at.words("IN") or at.words("FROM") else ()
    at.words("LIKE")
    like = "*" if at.done else at.take("a pattern").text
    at.end()
    return s.ShowTables(namespace, like)


def _named(kind: Callable[[s.Name], s.Statement]) -> Callable[[Tokens, str], s.Statement]:
    def build(at: Tokens, sql: str) -> s.Statement:
        name = at.name("a name")
        at.end()
        return kind(name)

    return build


def _drop(kind: Callable[[s.Name, bool], s.Statement], what: str) -> Callable[[Tokens, str], s.Statement]:
    def build(at: Tokens, sql: str) -> s.Statement:
        lenient = at.words("IF", "EXISTS")
        name = at.name(f"the name of the {what}")
        at.end()
        return kind(name, lenient)

    return build


def _create_view(*, or_replace: bool) -> Callable[[Tokens, str], s.Statement]:
    def build(at: Tokens, sql: str) -> s.Statement:
        lenient = at.words("IF", "NOT", "EXISTS")
        name = at.name("the name of the view")
        if len(name) > 1:
            raise SqlError(f"a view is of this session, so its name is one word: {'.'.join(name)}")
        columns = _columns(at)
        at.expect("AS")
        return s.CreateView(name, find_query(at.rest, sql), columns, or_replace, lenient)

    return build


def _insert(at: Tokens, sql: str) -> s.Statement:
    at.words("TABLE")
    name = at.name("the name of the topic")
    columns = _columns(at)
    at.words("BY", "NAME")
    if at.done:
        raise at.wrong("the rows are missing", hint="write SELECT ... or VALUES (...), ...")
    rest = at.rest
    literal = rest[0].text.upper() == "VALUES"
    begin, end = rest[0].start, rest[-1].end + 1
    query = Query(sql[begin:end]) if literal else find_query(rest, sql)
    return s.Insert(name, query, columns, literal, sql[at.first.start : begin])


def _columns(at: Tokens) -> tuple[str, ...]:
    """Names in parentheses, if there are any."""
    found: list[str] = []
    if not at.symbol(TokenType.L_PAREN):
        return ()
    while not found or at.symbol(TokenType.COMMA):
        found += at.name("a column")
    if not at.symbol(TokenType.R_PAREN):
        raise at.wrong(") is missing")
    return tuple(found)


# --- Spark's ------------------------------------------------------------------------------------------------


def _spark(tokens: Sequence[Token], sql: str) -> s.Statement:
    """A query, maybe a live one or one to be explained; or something else."""
    first = tokens[0].text.upper()
    if first == "EXPLAIN" and len(tokens) == 2:  # sqlglot leaves the rest of it as one text
        rest = tokens[1].text
        words = tokenize(rest)
        begin = next((i for i, one in enumerate(words) if one.text.upper() in ("SELECT", "WITH", "FROM")), 0)
        return s.Select(find_query(words[begin:], rest), f"EXPLAIN {rest[: words[begin].start]}")
    kept = _without_emit(tokens)
    live = _live(kept)
    if live is not None:
        word = kept[live]
        blank = sql[: word.start] + " " * len(word.text) + sql[word.end + 1 :]
        return s.SelectStream(find_query([*kept[:live], *kept[live + 1 :]], blank))
    if first in _QUERY:
        return (s.Select if len(kept) == len(tokens) else s.SelectStream)(find_query(kept, sql))
    return _other(tokens, sql)


def _other(tokens: Sequence[Token], sql: str) -> s.Other:
    made = _table_made(Tokens(tokens, sql))
    whole = s.Other(sql[tokens[0].start : tokens[-1].end + 1], makes=made)
    depth, words = 0, [token.text.upper() for token in tokens]
    if words[0] not in _WITH_QUERY:
        return whole
    for at, token in enumerate(tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if not depth and at and words[at] in ("SELECT", "WITH"):
            try:
                query = find_query(tokens[at:], sql)
            except SqlError:  # Spark knows better what is wrong
                return whole
            return s.Other(sql[tokens[0].start : token.start], query, made)
    return whole


def _table_made(at: Tokens) -> s.Name:
    """The table that a statement makes, if it does."""
    if not at.words("CREATE"):
        return ()
    at.words("OR", "REPLACE")
    at.words("EXTERNAL")
    if not at.words("TABLE"):
        return ()
    at.words("IF", "NOT", "EXISTS")
    try:
        return at.name("the name of the table")
    except SqlError:  # Spark knows better what is wrong
        return ()


def _without_emit(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without EMIT CHANGES at the end, by which other programs tell live queries."""
    ends = [token.text.upper() for token in tokens[-2:]] == ["EMIT", "CHANGES"]
    return tokens[:-2] if ends and len(tokens) > 3 else tokens


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


_VIEWS = {
    ("CREATE", *replace, *kind, "VIEW"): _create_view(or_replace=bool(replace))
    for replace in ((), ("OR", "REPLACE"))
    for kind in ((), ("TEMP",), ("TEMPORARY",))
}
_OWN: dict[tuple[str, ...], Callable[[Tokens, str], s.Statement]] = {
    ("CREATE", "STREAM"): _create_stream,
    ("SHOW", "STREAMS"): _show_streams,
    ("WATCH", "STREAMS"): _watch_streams,
    ("WATCH", "STREAM"): _named(lambda name: s.Watch(s.DescribeStream(name))),
    ("SHOW", "TABLES"): _show_tables,
    ("SHOW", "TOPICS"): _show_tables,
    ("DESCRIBE", "STREAM"): _named(s.DescribeStream),
    ("DESC", "STREAM"): _named(s.DescribeStream),
    ("DESCRIBE", "TABLE"): _named(s.DescribeTable),
    ("DESCRIBE",): _named(s.DescribeTable),
    ("DESC",): _named(s.DescribeTable),
    ("PAUSE", "STREAM"): _named(s.PauseStream),
    ("RESUME", "STREAM"): _named(s.ResumeStream),
    ("DROP", "STREAM"): _drop(s.DropStream, "stream"),
    **_VIEWS,
    ("DROP", "VIEW"): _drop(s.DropView, "view"),
    ("INSERT", "INTO"): _insert,
    ("SHOW", "REPLAYS"): _show_replays,
    ("REPLAY", "SELECTION", "OF"): select_replay,
    ("REPLAY", "COUNT", "OF"): count_replay,
    ("REPLAY",): replay_messages,
}

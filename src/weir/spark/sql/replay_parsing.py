"""REPLAY topic [FROM t] [TO t] [WHERE condition] INTO [SUBSCRIPTION|TOPIC] name [RATE n] [DRY RUN]."""

from base64 import b64decode

from msgspec import DecodeError, json
from sqlglot import TokenType

from weir.model.errors import SqlError
from weir.model.replays import Replay
from weir.spark.sql import statements as s
from weir.spark.sql.cluster import topic_named
from weir.spark.sql.tokens import Tokens

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

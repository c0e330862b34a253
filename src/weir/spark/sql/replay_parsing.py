"""REPLAY topic [FROM t] [TO t] [WHERE condition] INTO [SUBSCRIPTION|TOPIC] name [RATE n] [DRY RUN]."""

from sqlglot import TokenType

from weir.spark.sql import statements as s
from weir.spark.sql.tokens import Tokens


def replay_messages(at: Tokens, sql: str) -> s.Statement:
    name = at.name("the topic")
    since = until = None
    if at.words("FROM"):
        since = at.take("a moment").text
    if at.words("TO"):
        until = at.take("a moment").text
    where = _condition(at, sql) if at.words("WHERE") else ""
    at.expect("INTO")
    kind = "subscription:" if at.words("SUBSCRIPTION") else "topic:" if at.words("TOPIC") else ""
    into = "/".join(at.name("a subscription, or a topic"))
    rate = 0
    if at.words("RATE"):
        text = at.take("messages per second").text
        if not text.isdigit() or not int(text):
            raise at.wrong(f"RATE is {text!r}", hint="write messages per second")
        rate = int(text)
    dry_run = at.words("DRY", "RUN")
    at.end()
    return s.ReplayMessages(name, f"{kind}{into}", where, since, until, rate, dry_run)


def _condition(at: Tokens, sql: str) -> str:
    """All before the INTO that stands in no parentheses."""
    depth, tokens = 0, []
    while not at.done:
        token = at.rest[0]
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if not depth and token.text.upper() == "INTO" and token.token_type is not TokenType.STRING:
            break
        tokens.append(at.take("a condition"))
    if not tokens:
        raise at.wrong("the condition is missing")
    return sql[tokens[0].start : tokens[-1].end + 1]


def select_replay(at: Tokens, sql: str) -> s.Statement:
    found = at.take("the id of a replay").text
    at.end()
    return s.SelectReplay(found)

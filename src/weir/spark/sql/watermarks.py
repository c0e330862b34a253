"""Spark's clause `WATERMARK column DELAY OF INTERVAL ...` after a table, which sqlglot does not know."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

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

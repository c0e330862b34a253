"""Spark's clause `WITH (name = value, ...)` after a table in a query: how its values are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

from weir.model.errors import SqlError
from weir.spark.sql.tokens import Tokens

#: What becomes of a message whose value is not as the schema says: the query fails; its text goes into a column;
#: it is left out; it is left out, and a stream writes it into a topic of its own.
FAILFAST, PERMISSIVE, DROPMALFORMED, DEADLETTER = "FAILFAST", "PERMISSIVE", "DROPMALFORMED", "DEADLETTER"
MODES = (FAILFAST, PERMISSIVE, DROPMALFORMED, DEADLETTER)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


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

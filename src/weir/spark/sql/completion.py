"""What may come next in a statement that is being written: columns, topics and words of SQL."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from sqlglot import Token, TokenType

from weir.model.errors import SqlError
from weir.spark.tables.query import tokenize

_WORDS = """
    SELECT|SELECT STREAM|DISTINCT ON|FROM|WHERE|GROUP BY|HAVING|ORDER BY|LIMIT|DISTINCT|UNION ALL|WITH|JOIN|LEFT
    RIGHT JOIN|FULL JOIN|ON|USING|AS|CASE|WHEN|THEN|ELSE|END|AND|OR|NOT|NULL|IS|IN|LIKE|BETWEEN|INTERVAL
    WATERMARK|DELAY OF INTERVAL|EXPLAIN|CREATE STREAM|PAUSE STREAM|RESUME STREAM|DROP STREAM|DESCRIBE STREAM
    SHOW STREAMS|WATCH STREAMS|WATCH STREAM|SHOW TABLES|DESCRIBE|IF EXISTS|IF NOT EXISTS|CREATE VIEW|DROP VIEW
    INSERT INTO|VALUES|STREAM|count|sum|avg|min|max|window|session_window|window_time|current_timestamp
    earliest|latest|append|update|complete|exit|quit
"""
WORDS = tuple(word.strip() for word in _WORDS.replace("\n", "|").split("|") if word.strip())
#: After these stands the name of a table.
_BEFORE = (TokenType.FROM, TokenType.JOIN, TokenType.INTO, TokenType.DESCRIBE)
#: These may stand between such a word and the name.
_BETWEEN = ("TABLE", "STREAM")
_STREAM_WORDS = ("PAUSE", "RESUME", "DROP", "WATCH", "DESC")
_NAME = "_`."


def word_before(text: str) -> str:
    """The name, or the beginning of one, that a text ends with."""
    at = len(text)
    while at and (text[at - 1].isalnum() or text[at - 1] in _NAME or _in_backticks(text, at - 1)):
        at -= 1
    return text[at:]


def _in_backticks(text: str, at: int) -> bool:
    line = text.rpartition("\n")[2]
    place = at - (len(text) - len(line))
    return place >= 0 and not text[at].isspace() and line[:place].count("`") % 2 == 1


def tables_in(text: str) -> list[tuple[str, ...]]:
    """The names that stand where tables do; the text need not be a whole statement."""
    try:
        tokens = tokenize(text)
    except SqlError:
        return []
    found = (_name(tokens[at + 1 :]) for at, token in enumerate(tokens) if token.token_type in _BEFORE)
    return [name for name in dict.fromkeys(found) if name]


def _name(tokens: Sequence[Token]) -> tuple[str, ...]:
    parts: list[str] = []
    for at, token in enumerate(tokens):
        if at % 2:
            if token.token_type is not TokenType.DOT:
                break
        elif token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or token.text.isidentifier():
            parts.append(token.text)
        else:
            break
    return tuple(parts)


def completions(
    text: str, before: str, topics: Iterable[str], columns: Callable[[tuple[str, ...]], Iterable[str]]
) -> Iterator[tuple[str, int]]:
    """What the word before the cursor may become, and how many characters of it that replaces. `text`: all that is
    written; `before`: up to the cursor."""
    word = word_before(before)
    if _wants_table(before[: len(before) - len(word)]):
        yield from ((topic, len(word)) for topic in topics if topic.lower().startswith(word.lower()))
        return
    if not word:
        return
    last = word.rpartition(".")[2]
    seen: set[str] = set()
    named = [column for table in tables_in(text) for column in columns(table)]
    for one, typed in (
        *((column, last) for column in named),
        *((topic, word) for topic in topics),
        *((keyword, word) for keyword in WORDS),
    ):
        if one.lower().startswith(typed.lower()) and one not in seen:
            seen.add(one)
            yield one, len(typed)


def _wants_table(before: str) -> bool:
    """Whether the next word is the name of a table."""
    try:
        tokens = tokenize(before)
    except SqlError:
        return False
    if not tokens or not before[-1:].isspace():
        return False
    cut = len(tokens) > 1 and tokens[-1].text.upper() in _BETWEEN
    tokens = tokens[:-1] if cut else tokens
    return tokens[-1].token_type in _BEFORE or (cut and tokens[-1].text.upper() in _STREAM_WORDS)

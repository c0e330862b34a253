"""SELECT DISTINCT, also `DISTINCT ON (...)`: where it stands in a query.

Spark's SQL cannot say by which columns rows are the same, and in a stream it takes DISTINCT for groups, whose rows
are written again whenever one is seen again. So the words are cut out here, and Spark's `dropDuplicates` does it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import Token, TokenType

from weir.model.errors import SqlError
from weir.spark.sql.watermarks import Watermark, watermark_at

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

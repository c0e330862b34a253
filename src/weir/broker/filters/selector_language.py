"""The language of conditions: SQL92's, as far as one message can answer it, parsed by lark into closures.

LALR: the time is linear in the text, and nesting costs no stack. Each rule makes its closure when it is complete,
so there is no tree, and no text of a user's is ever Python.

Conditions over one message as closures, with SQL's three-valued logic: True, False, or None for unknown.

A head is all that a condition sees of a message: its properties by name, as bytes, and its key. Texts are compared
as UTF-8, whose order is that of their characters. A property is a number, a truth value or a text, as what it is
compared with asks for; where it cannot be that, the comparison is unknown, as it is where there is no property of
that name.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from math import isfinite
from typing import Any, NoReturn

from re2 import Options, escape
from re2 import compile as compile_pattern

from weir.model.errors import FilterError
from weir.model.ids import value
from weir.model.subscriptions import KEYS_HEADER

Head = Mapping[str, bytes | None]
Condition = Callable[[Head], bool | None]
Number = int | float
#: What an operand is for one message: None if it is not there.
Text = Callable[[Head], bytes | None]

#: The name under which a head has the key: no property can have it.
KEY = "\x00key"
#: Other names of the key, where there is no property of that name.
_KEYS = (KEYS_HEADER, "KEY")
_NUMBER = re.compile(rb"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?")
_MOST_DIGITS = 64
_TRUTH = {b"true": True, b"false": False}

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@lru_cache(maxsize=8192)
def number_of(text: bytes | None) -> Number | None:
    """The number that a text is; None if it is none."""
    if text is None or len(text) > _MOST_DIGITS:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match[1] is None and match[2] is None and match[3] is None:
        return int(text)
    number = float(text)
    return number if isfinite(number) else None


def truth_of(text: bytes | None) -> bool | None:
    """`true` and `false`, however they are written."""
    return None if text is None else _TRUTH.get(text.lower())


def property_named(name: str) -> Text:
    """A property of the message; the key for the names that mean it."""
    if name in _KEYS:
        return lambda head: head[name] if name in head else head.get(KEY)
    return lambda head: head.get(name)


def always(result: bool | None) -> Condition:
    return lambda head: result


# --- comparing --------------------------------------------------------------------------------------------------


def compare_number(text: Text, sign: str, than: Number) -> Condition:
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        found = number_of(text(head))
        return None if found is None else compared(found, than)

    return condition


def compare_text(text: Text, sign: str, than: bytes) -> Condition:
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else compared(found, than)

    return condition


def compare_truth(text: Text, sign: str, than: bool) -> Condition:
    equal = sign == "="

    def condition(head: Head) -> bool | None:
        found = truth_of(text(head))
        return None if found is None else (found is than) is equal

    return condition


def compare_properties(left: Text, sign: str, right: Text) -> Condition:
    """As numbers where both are, else as texts."""
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        first, second = left(head), right(head)
        if first is None or second is None:
            return None
        one, other = number_of(first), number_of(second)
        return compared(first, second) if one is None or other is None else compared(one, other)

    return condition


def among(text: Text, texts: Sequence[bytes], numbers: Sequence[Number], *, null: bool) -> Condition:
    """IN. `null`: NULL is in the list, so that what is not found is unknown."""
    named, counted = frozenset(texts), frozenset(numbers)
    absent = None if null else False

    def condition(head: Head) -> bool | None:
        found = text(head)
        if found is None:
            return None
        if found in named:
            return True
        if not counted:
            return absent
        number = number_of(found)
        if number is None:  # it cannot be compared with those
            return None
        return True if number in counted else absent

    return condition


def is_null(text: Text) -> Condition:
    return lambda head: text(head) is None


def as_truth(text: Text) -> Condition:
    return lambda head: truth_of(text(head))


def like(text: Text, pattern: str, escape_by: str = "") -> Condition:
    """`%`: any characters; `_`: one. In time linear in the text, whatever the pattern."""
    pieces: list[str] = [""]  # what stands between the signs for any characters
    single = False
    regular: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "%" != escape_by:
            pieces.append("")
            regular.append(".*")
            continue
        if sign == "_" != escape_by:
            single = True
            regular.append(".")
            continue
        plain = next(signs) if sign == escape_by else sign
        regular.append(escape(plain))
        pieces[-1] += plain
    matches = _regular("".join(regular)) if single else _in_order([piece.encode() for piece in pieces])

    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else matches(found)

    return condition


def _regular(pattern: str) -> Callable[[bytes], bool]:
    options = Options()
    options.dot_nl = True
    options.log_errors = False
    fullmatch = compile_pattern(pattern, options).fullmatch
    return lambda found: fullmatch(found.decode("utf-8", "replace")) is not None


def _in_order(pieces: Sequence[bytes]) -> Callable[[bytes], bool]:
    """The first piece at the start, the last at the end, the others between them: each as early as it can be."""
    if len(pieces) == 1:
        return lambda found: found == pieces[0]
    first, last, between = pieces[0], pieces[-1], [piece for piece in pieces[1:-1] if piece]
    least = len(first) + len(last)

    def matches(found: bytes) -> bool:
        if len(found) < least or not found.startswith(first) or not found.endswith(last):
            return False
        at, end = len(first), len(found) - len(last)
        for piece in between:
            at = found.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def text_test(text: Text, test: Callable[[bytes, bytes], bool], part: bytes) -> Condition:
    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else test(found, part)

    return condition


# --- logic ------------------------------------------------------------------------------------------------------


def negation(of: Condition) -> Condition:
    def condition(head: Head) -> bool | None:
        found = of(head)
        return None if found is None else not found

    return condition


def conjunction(parts: Sequence[Condition]) -> Condition:
    """False if any is; else unknown if any is."""

    def condition(head: Head) -> bool | None:
        result: bool | None = True
        for part in parts:
            found = part(head)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return condition


def disjunction(parts: Sequence[Condition]) -> Condition:
    """True if any is; else unknown if any is."""

    def condition(head: Head) -> bool | None:
        result: bool | None = False
        for part in parts:
            found = part(head)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return condition


#: Of an expression, in characters; and of what is nested in it.
MAX_CHARACTERS = 8192
MAX_DEPTH = 64
#: Comparisons and listed values of one expression.
MAX_TERMS = 1024

_GRAMMAR = r"""
?start: disjunction
disjunction: conjunction (_OR conjunction)*
conjunction: factor (_AND factor)*
?factor: _NOT factor -> negation
       | predicate
?predicate: "(" disjunction ")"
          | operand SIGN operand                                -> compared
          | operand [NOT] _BETWEEN operand _AND operand         -> between
          | operand [NOT] _IN "(" operand ("," operand)* ")"    -> among
          | operand [NOT] _LIKE STRING [_ESCAPE STRING]         -> like
          | operand [NOT] TEST STRING                           -> tested
          | operand _IS [NOT] NULL                              -> is_null
          | operand                                             -> truth
operand: NAME   -> name
       | QUOTED -> quoted
       | STRING -> string
       | NUMBER -> number
       | TRUE   -> literal_true
       | FALSE  -> literal_false
       | NULL   -> null
_OR.2: /OR\b/i
_AND.2: /AND\b/i
_NOT.2: /NOT\b/i
NOT.3: /NOT(?=\s+(BETWEEN|IN|LIKE|NULL|CONTAINS|STARTSWITH|ENDSWITH)\b)/i
_BETWEEN.2: /BETWEEN\b/i
_IN.2: /IN\b/i
_LIKE.2: /LIKE\b/i
_ESCAPE.2: /ESCAPE\b/i
_IS.2: /IS\b/i
NULL.2: /NULL\b/i
TRUE.2: /TRUE\b/i
FALSE.2: /FALSE\b/i
TEST.2: /(CONTAINS|STARTSWITH|ENDSWITH)\b/i
SIGN: /<>|!=|<=|>=|=|<|>/
NUMBER: /[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?(?![A-Za-z_$])/
STRING: /'(?:[^']|'')*'/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*(\.[A-Za-z0-9_$]+)*/
QUOTED: /"(?:[^"]|"")+"|`[^`]+`/
%ignore /[ \t\r\n\f]+/
"""
#: How terminals are called where one was expected.
_SAID = {
    "SIGN": "= <> < <= > >=",
    "STRING": "'text'",
    "NUMBER": "a number",
    "NAME": "a property",
    "QUOTED": '"a property"',
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "NOT": "NOT",
    "_NOT": "NOT",
    "TEST": "CONTAINS STARTSWITH ENDSWITH",
    "$END": "the end",
}
_TESTS: dict[str, Callable[[bytes, bytes], bool]] = {
    "CONTAINS": lambda found, part: part in found,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}
_OPPOSITES = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
HINT = "see docs/reference/filters.md for what can be said"


@value
class _Operand:
    """`kind`: name, text, number, truth or null. `at`: where in the expression."""

    kind: str
    content: Any
    at: int


@value
class _Made:
    """A condition, and how deep its parts are nested."""

    condition: Condition
    depth: int = 1
    terms: int = 1


def compile_sql(expression: str) -> Condition:
    """FilterError says what is wrong, where, and what could stand there."""
    if len(expression) > MAX_CHARACTERS:
        raise FilterError(
            f"a filter has {len(expression)} characters, {MAX_CHARACTERS} are allowed",
            hint="say less, or give messages a property that says it",
        )
    from lark.exceptions import UnexpectedInput, VisitError

    try:
        made: _Made = _parser().parse(expression)
    except VisitError as wrapped:
        raise wrapped.orig_exc from None
    except UnexpectedInput as bad:
        found: Any = bad
        at = found.pos_in_stream
        expected = set(getattr(found, "accepts", None) or getattr(found, "allowed", None) or ())
        ended = at is None or not 0 <= at < len(expression) or getattr(found, "token", "?") == ""
        _refuse(expression, len(expression) if ended else at, expected=expected)
    return made.condition


def _refuse(expression: str, at: int, *, expected: set[str]) -> NoReturn:
    found = "it ends" if at >= len(expression) else f"{expression[at : at + 20]!r} is not understood"
    wanted = ", ".join(sorted({_SAID.get(name, name.strip("_")) for name in expected}))
    raise _wrong(found, at, hint=f"expected {wanted}; {HINT}" if wanted else HINT)


def _wrong(what: str, at: int, hint: str = HINT) -> FilterError:
    """Positions count from 1."""
    return FilterError(f"the filter is wrong at position {at + 1}: {what}", hint=hint, position=at + 1)


@cache
def _parser() -> Any:
    """Made when the first filter comes: it takes some ten milliseconds, and most brokers have none."""
    from lark import Lark, Transformer

    class Closures(Transformer[Any, _Made]):
        """One method for each rule of the grammar."""

        def disjunction(self, parts: list[_Made]) -> _Made:
            return _joined(parts, disjunction)

        def conjunction(self, parts: list[_Made]) -> _Made:
            return _joined(parts, conjunction)

        def negation(self, parts: list[_Made]) -> _Made:
            return _limited(_Made(negation(parts[0].condition), parts[0].depth + 1, parts[0].terms))

        def compared(self, parts: list[Any]) -> _Made:
            left, sign, right = parts
            return _Made(_compared(left, str(sign), right))

        def between(self, parts: list[Any]) -> _Made:
            operand, negated, low, high = parts
            both = conjunction([_compared(operand, ">=", low), _compared(operand, "<=", high)])
            return _perhaps(negated, both)

        def among(self, parts: list[Any]) -> _Made:
            operand, negated, *listed = parts
            return _perhaps(negated, _among(operand, listed), len(listed))

        def like(self, parts: list[Any]) -> _Made:
            operand, negated, pattern, escape_by = parts
            return _perhaps(negated, _like(operand, pattern, escape_by))

        def tested(self, parts: list[Any]) -> _Made:
            operand, negated, test, part = parts
            text = _text(operand)
            return _perhaps(negated, text_test(text, _TESTS[test.upper()], _unquoted(part).encode()))

        def is_null(self, parts: list[Any]) -> _Made:
            operand, negated, _ = parts
            if operand.kind == "name":
                found = is_null(property_named(operand.content))
            else:
                found = always(operand.kind == "null")
            return _perhaps(negated, found)

        def truth(self, parts: list[_Operand]) -> _Made:
            (operand,) = parts
            match operand.kind:
                case "name":
                    return _Made(as_truth(property_named(operand.content)))
                case "truth":
                    return _Made(always(operand.content))
                case "null":
                    return _Made(always(None))
            raise _wrong("a value alone is no condition", operand.at, "compare it with something: name = 'value'")

        def name(self, parts: list[Any]) -> _Operand:
            return _Operand("name", str(parts[0]), parts[0].start_pos)

        def quoted(self, parts: list[Any]) -> _Operand:
            text = str(parts[0])
            name = text[1:-1].replace('""', '"') if text[0] == '"' else text[1:-1]
            return _Operand("name", name, parts[0].start_pos)

        def string(self, parts: list[Any]) -> _Operand:
            return _Operand("text", _unquoted(parts[0]), parts[0].start_pos)

        def number(self, parts: list[Any]) -> _Operand:
            found = number_of(str(parts[0]).encode())
            if found is None:
                raise _wrong("a number is too large", parts[0].start_pos)
            return _Operand("number", found, parts[0].start_pos)

        def literal_true(self, parts: list[Any]) -> _Operand:
            return _Operand("truth", True, parts[0].start_pos)

        def literal_false(self, parts: list[Any]) -> _Operand:
            return _Operand("truth", False, parts[0].start_pos)

        def null(self, parts: list[Any]) -> _Operand:
            return _Operand("null", None, parts[0].start_pos)

    return Lark(_GRAMMAR, parser="lalr", transformer=Closures(), maybe_placeholders=True)


def _joined(parts: list[_Made], join: Callable[[list[Condition]], Condition]) -> _Made:
    if len(parts) == 1:
        return parts[0]
    depth = max(part.depth for part in parts) + 1
    return _limited(_Made(join([part.condition for part in parts]), depth, sum(part.terms for part in parts)))


def _perhaps(negated: object, found: Condition, terms: int = 1) -> _Made:
    return _limited(_Made(found if negated is None else negation(found), 2, terms))


def _limited(made: _Made) -> _Made:
    if made.depth > MAX_DEPTH:
        raise FilterError(f"a filter is nested more than {MAX_DEPTH} deep", hint="say it more flatly")
    if made.terms > MAX_TERMS:
        raise FilterError(
            f"a filter has more than {MAX_TERMS} comparisons", hint="give messages a property that says it"
        )
    return made


def _compared(left: _Operand, sign: str, right: _Operand) -> Condition:
    if left.kind != "name" and right.kind == "name":
        left, sign, right = right, _OPPOSITES.get(sign, sign), left
    if "null" in (left.kind, right.kind):
        return always(None)
    if "truth" in (left.kind, right.kind) and sign not in ("=", "<>", "!="):
        raise _wrong("truth values have no order", right.at, "compare them with = or <>")
    if left.kind != "name":
        if left.kind != right.kind:
            raise _wrong(f"a {left.kind} is compared with a {right.kind}", right.at, "compare like with like")
        return always(COMPARISONS[sign](left.content, right.content))
    text = property_named(left.content)
    match right.kind:
        case "name":
            return compare_properties(text, sign, property_named(right.content))
        case "number":
            return compare_number(text, sign, right.content)
        case "truth":
            return compare_truth(text, sign, right.content)
    return compare_text(text, sign, right.content.encode("utf-8", "surrogatepass"))


def _among(operand: _Operand, listed: list[_Operand]) -> Condition:
    if any(one.kind in ("name", "truth") for one in listed) or operand.kind != "name":
        return disjunction([_compared(operand, "=", one) for one in listed])
    texts = [one.content.encode("utf-8", "surrogatepass") for one in listed if one.kind == "text"]
    numbers: list[Number] = [one.content for one in listed if one.kind == "number"]
    null = any(one.kind == "null" for one in listed)
    return among(property_named(operand.content), texts, numbers, null=null)


def _like(operand: _Operand, pattern: Any, escape_by: Any) -> Condition:
    text, sign = _unquoted(pattern), "" if escape_by is None else _unquoted(escape_by)
    if escape_by is not None and len(sign) != 1:
        raise _wrong("ESCAPE takes one character", escape_by.start_pos, r"ESCAPE '\'")
    signs = iter(text)
    for one in signs if sign else ():
        if one == sign and next(signs, "") not in ("%", "_", sign):
            raise _wrong(f"{sign!r} escapes nothing", pattern.start_pos, f"it stands before %, _ or {sign}")
    return like(_text(operand), text, sign)


def _text(operand: _Operand) -> Text:
    """As a text: a property, or one that is said."""
    if operand.kind == "name":
        return property_named(operand.content)
    if operand.kind in ("text", "null"):
        said = None if operand.content is None else operand.content.encode("utf-8", "surrogatepass")
        return lambda head: said
    raise _wrong(f"a {operand.kind} is no text", operand.at, "name a property there")


def _unquoted(token: Any) -> str:
    return str(token)[1:-1].replace("''", "'")

"""What `WITH (...)` of a stream takes."""

from difflib import get_close_matches

from sqlglot import TokenType

from weir.model.errors import SqlError
from weir.spark.sql.tokens import Tokens

#: By their names in small letters.
OPTIONS = {
    name.lower(): name
    for name in ("mode", "start", "trigger", "maxOffsetsPerTrigger", "partitions", "failOnDataLoss")
}
_MODES = ("append", "update", "complete")
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
    _check_word(found, "mode", _MODES)
    _check_word(found, "start", _STARTS)
    _check_word(found, "failOnDataLoss", ("true", "false"))
    for name in ("maxOffsetsPerTrigger", "partitions"):
        if name in found and not (found[name].isdigit() and int(found[name])):
            raise SqlError(f"{name} is {found[name]!r}", hint="write a number, 1 or more")
    return found


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

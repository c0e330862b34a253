"""What `WITH (...)` of a stream takes."""

from collections.abc import Mapping
from difflib import get_close_matches

from sqlglot import TokenType

from weir.model.errors import SqlError
from weir.spark.sql.table_options import DEADLETTER, FAILFAST, MODES
from weir.spark.sql.tokens import Tokens

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

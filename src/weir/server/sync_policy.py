"""When a journal is synced, as people write it."""

from weir.model.errors import ConfigError


def parse_sync(text: str) -> float | None:
    """The journal's sync interval in seconds; None for `always`."""
    policy, colon, number = text.partition(":")
    if text == "always":
        return None
    if policy == "periodic" and colon and number.isascii() and number.isdigit() and int(number) > 0:
        return int(number) / 1000
    raise ConfigError(f"{text!r} is no sync policy", hint="write always, or periodic:MILLISECONDS")


def show_sync(interval_s: float | None) -> str:
    """The same in writing."""
    return "always" if interval_s is None else f"periodic:{interval_s * 1000:g}"

"""Regular expressions of clients."""

from weir.model.errors import NotAllowedError

_MAX_PATTERN_CHARS = 512


class Pattern:
    """A regular expression of a client, in RE2's syntax as in Pulsar.

    RE2 takes time linear in the input whatever the pattern, so a client cannot stall the broker with one.
    """

    def __init__(self, pattern: str) -> None:
        """NotAllowedError if it is too long or not a pattern."""
        import re2  # loaded when first needed: most brokers never see a pattern

        if len(pattern) > _MAX_PATTERN_CHARS:
            raise NotAllowedError(f"a pattern has at most {_MAX_PATTERN_CHARS} characters, not {len(pattern)}")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 1 << 20
        try:
            self._pattern = re2.compile(pattern, options)
        except re2.error as bad:
            raise NotAllowedError(f"{pattern[:80]!r} is not a pattern: {bad}", hint="see RE2's syntax") from None

    def fullmatch(self, text: str) -> bool:
        return self._pattern.fullmatch(text) is not None

    def found_in(self, text: str) -> bool:
        """Whether any part of the text matches."""
        return self._pattern.search(text) is not None

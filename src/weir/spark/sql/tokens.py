"""A statement's tokens, taken one after the other."""

from collections.abc import Sequence

from sqlglot import Token, TokenType

from weir.model.errors import SqlError

BACKTICKS, SEE_DOCS = "put names with other characters into `backticks`", "see docs/reference/sql.md"


class Tokens:
    """A place among the tokens of one statement."""

    def __init__(self, tokens: Sequence[Token], sql: str) -> None:
        self._tokens = tokens
        self._sql = sql
        self._at = 0

    @property
    def first(self) -> Token:
        """The first of the statement, taken or not."""
        return self._tokens[0]

    @property
    def rest(self) -> Sequence[Token]:
        return self._tokens[self._at :]

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    def words(self, *words: str) -> bool:
        """Whether these are the next words; then they are taken."""
        found = [token.text.upper() for token in self._tokens[self._at : self._at + len(words)]]
        quoted = any(token.token_type in (TokenType.IDENTIFIER, TokenType.STRING) for token in self.rest[:1])
        if found != list(words) or quoted:
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.words(*words):
            raise self.wrong(f"{' '.join(words)} is missing")

    def symbol(self, kind: TokenType) -> bool:
        if self.done or self._tokens[self._at].token_type is not kind:
            return False
        self._at += 1
        return True

    def take(self, what: str) -> Token:
        if self.done:
            raise self.wrong(f"{what} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def name(self, what: str) -> tuple[str, ...]:
        """One to three words with dots between them."""
        parts = [self._part(what)]
        while self.symbol(TokenType.DOT):
            parts.append(self._part(what))
        if len(parts) > 3:
            raise self.wrong(f"{'.'.join(parts)} has too many parts", hint="write tenant.namespace.topic")
        return tuple(parts)

    def _part(self, what: str) -> str:
        token = self.take(what)
        if token.token_type is not TokenType.IDENTIFIER and not token.text.isidentifier():
            self._at -= 1
            raise self.wrong(f"{what} is missing", hint=BACKTICKS)
        return token.text

    def end(self) -> None:
        """That was all."""
        if not self.done:
            raise self.wrong("the statement should end here")

    def wrong(self, what: str, *, hint: str = SEE_DOCS) -> SqlError:
        """An error at this place."""
        if self.done:
            return SqlError(f"{what} at the end", hint=hint)
        token = self._tokens[self._at]
        if token.token_type is TokenType.DASH:
            hint = BACKTICKS
        near = self._sql[token.start : token.start + 40].split("\n")[0]
        return SqlError(f"{what} at line {token.line}, near {near!r}", hint=hint)

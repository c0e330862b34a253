"""Whom a client trusts over TLS: the same certificates on every interpreter."""

import ssl

from weir.model.errors import ConnectionLostError, TlsFailedError, TlsRefusedError, WeirError

#: So often in a row a server may close a connection without a word, before that is its answer.
_REFUSALS = 3


def trusting(ca: str | None) -> ssl.SSLContext:
    """Trusts what this file of certificates has, or what the system trusts if there is none.

    Since 3.13 Python refuses certificates that lack what RFC 5280 demands of their makers (an authority key id,
    say), and trusts a named certificate even when another one signed it. The first would lock out whoever made
    theirs for clients in Java or C, which do not ask; so Weir never asks, and always does the second.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def unanswered(lost: ConnectionLostError) -> TlsRefusedError:
    """The same, with what may be done: a server learns of a client's certificate after the client is done with the
    handshake, and one that it does not want it sends away without a word."""
    hint = lost.hint or (
        "if it asks clients for certificates, give one of an authority that it trusts:"
        " --cert and --cert-key, or kafka.ssl.certificate.location"
    )
    return TlsRefusedError(lost.what, hint=hint)


class Refusals:
    """Tells a server that does not take our certificate from one that is away for a while, which also may close a
    connection in our face; but not again and again."""

    def __init__(self, servers: int = 1) -> None:
        """`servers`: how many are asked in turn; any of them may take what the others do not."""
        self._enough = _REFUSALS * servers
        self._weight = 0

    def final(self, failure: WeirError) -> bool:
        """Whether what was just tried need not be tried again."""
        match failure:
            case TlsFailedError():
                self._weight += _REFUSALS
            case TlsRefusedError():
                self._weight += 1
            case _:
                self._weight = 0
        return self._weight >= self._enough

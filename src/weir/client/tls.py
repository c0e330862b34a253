"""Whom a client trusts over TLS: the same certificates on every interpreter."""

import ssl


def trusting(ca: str | None) -> ssl.SSLContext:
    """Trusts what this file of certificates has, or what the system trusts if there is none.

    Since 3.13 Python refuses certificates that lack what RFC 5280 demands of their makers (an authority key id,
    say), and trusts a named certificate even when another one signed it. The first would lock out whoever made
    theirs for clients in Java or C, which do not ask; so Weir never asks, and always does the second.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context

"""What is likely to hurt later, told when a Weir starts: few file descriptors, a clock that is wrong, a sign-in
that nobody can pass, a host name that nobody knows."""

import resource
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

from weir.server.config.tree import Config

#: No Weir was made before; a clock that says otherwise was never set.
_FIRST_WEIR = datetime(2026, 1, 1, tzinfo=UTC)
#: Files, and connections between processes, that are no client's.
_OWN_DESCRIPTORS = 256
#: So many clients come to small ones, too; nobody is told of fewer.
_FEW_DESCRIPTORS = 1024


def start_warnings(config: Config, *, now: datetime, descriptors: int | None = None) -> Iterator[str]:
    """One sentence each. `descriptors`: how many may be open; None for what the system says."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if descriptors is None else descriptors
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        yield (
            f"only {soft} files and connections can be open at a time, which is enough for some"
            f" {max(0, soft - _OWN_DESCRIPTORS)} clients (ulimit -n 65536 in the shell, LimitNOFILE=65536 in a"
            " systemd unit)"
        )
    if now < _FIRST_WEIR:
        yield (
            f"this machine's clock says {now:%Y-%m-%d}: delays, time to live, retention and tokens go by it"
            " (set it, by NTP say, and start Weir again)"
        )
    auth = config.auth
    nobody_asked = not auth.authenticate or auth.allow_anonymous
    if not nobody_asked and not (auth.token_secret or auth.token_public_key or config.tls.client_ca):
        yield (
            "auth.authenticate is on, and there is no key for tokens and no authority for clients' certificates:"
            " only users with passwords can come in, and RocketMQ's access keys"
            " (set auth.token_secret; weir token secret makes one)"
        )


def unknown_host(config: Config) -> str:
    """What to say if clients are told a name that this machine does not know; empty if it does. Takes as long as
    the resolver does."""
    host = config.listeners.advertised_host
    if not host:
        return ""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return (
            f"clients are told to come to {host!r} (listeners.advertised_host), and this machine finds no address"
            " for that name (correct it, or add it to DNS or /etc/hosts of the clients)"
        )
    return ""

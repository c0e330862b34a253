"""Checks at the start of a Weir: usable folders, and warnings about settings that cause trouble later.

A folder check names the part of the path that is a file, missing, or not writable, and folders of another kind.
Warnings cover few file descriptors, a wrong clock, unusable authentication, and an unknown host name.
"""

import os
import resource
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from weir.model.errors import ConfigError
from weir.server.cluster_up import PLAN_NAME
from weir.server.config.tree import Config

#: No Weir is older; an earlier date means that the clock was never set.
_FIRST_WEIR = datetime(2026, 1, 1, tzinfo=UTC)
#: Descriptors for files and internal connections, not for clients.
_OWN_DESCRIPTORS = 256
#: Small installations have this many clients, too; no warning above this.
_FEW_DESCRIPTORS = 1024


def start_warnings(config: Config, *, now: datetime, descriptors: int | None = None) -> Iterator[str]:
    """Warnings of one sentence each. `descriptors`: the limit; None: the system's."""
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
    """The warning if this machine does not know the advertised host name; empty if it does. Takes as long as the
    resolver."""
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


def check_usable(named: str, path: str) -> None:
    """ConfigError unless the folder exists or can be created, and this process can read and write it. `named`: the
    option that named it, such as `--data`."""
    if not path.strip():
        raise ConfigError(f"{named} is empty", hint=f"name a folder: {named} /var/lib/weir")
    folder = Path(path).absolute()
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_symlink() and not nearest.exists():
        raise ConfigError(
            f"{named} {folder}: the link {nearest} leads nowhere", hint="mend the link, or name another"
        )
    if not nearest.is_dir():
        raise ConfigError(f"{named} {folder}: {nearest} is a file, and no folder", hint="name another folder")
    if not os.access(nearest, os.W_OK | os.X_OK | (os.R_OK if nearest == folder else 0), effective_ids=True):
        raise ConfigError(f"{named} {folder}: {_who()} may not write in {nearest}", hint=_remedy(nearest, folder))


def check_kind(path: str, *, cluster: bool) -> None:
    """ConfigError if `weir up` is started on a folder of `weir cluster up`, or vice versa."""
    folder = Path(path).absolute()
    if not cluster and (folder / PLAN_NAME).exists():
        raise ConfigError(
            f"--data {folder} has the files of a cluster",
            hint=f"start it with weir cluster up --data {folder}, or name another folder",
        )
    if cluster and (folder / "meta").exists() and (folder / "bookie").exists():
        raise ConfigError(
            f"--data {folder} has the files of a Weir in one process",
            hint=f"start it with weir up --data {folder}, or name another folder",
        )


def _remedy(nearest: Path, folder: Path) -> str:
    if _is_read_only(nearest):
        return "its file system is mounted read-only; name a folder elsewhere"
    if nearest == folder:
        return f"run Weir as its owner, or: chown -R {os.geteuid()} {folder}"
    return f"make it as another user, and give it away: mkdir -p {folder} && chown {os.geteuid()} {folder}"


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _who() -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user id {os.geteuid()}"

"""Whether a folder can be what somebody wants it to be, said before anything is opened: which part of its path is
a file, missing, or not this user's; and whether what is in it is of another kind."""

import os
from pathlib import Path

from weir.model.errors import ConfigError
from weir.server.cluster_plan import PLAN_NAME


def check_usable(named: str, path: str) -> None:
    """ConfigError unless the folder is there, or can be made, and this process may read and write in it. `named`:
    how the user named it, `--data`, say."""
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
    """ConfigError if the folder is that of `weir cluster up`, and one of `weir up` is wanted, or vice versa."""
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

"""Whether a folder can be what somebody wants it to be, said before anything is opened: which part of its path is
a file, missing, or not this user's."""

import os
from pathlib import Path

from weir.model.errors import ConfigError


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

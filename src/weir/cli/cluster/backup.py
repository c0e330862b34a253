"""Copies of a running cluster, and bringing them into a new one: for `weir backup` and `weir restore`."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from weir.cli.cluster.ledger_session import ledger_session
from weir.datafolder.archive import is_archive
from weir.datafolder.backup import BackupReport
from weir.datafolder.backup import backup as make_backup
from weir.datafolder.cluster_copy import ClusterCopy, copy_cluster
from weir.datafolder.cluster_restore import restore_cluster
from weir.datafolder.one_file import backup_to_file, restore_from_file
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime

Progress = Callable[[int, int], None]


class Place(NamedTuple):
    """Where the metadata of a cluster is, and the secret of its nodes, if a file says it."""

    meta: str
    secret: str = ""


def cluster_at(folder: str | None, meta_url: str | None) -> Place | None:
    """The cluster that is meant: by its metadata, or by the folder of `weir cluster up`; None if none is."""
    if meta_url is not None:
        return Place(meta_url)
    plan = None if folder is None else Path(folder) / "cluster.json"
    if plan is None or not plan.exists():
        return None
    try:
        ports = [int(member["client_port"]) for member in json.loads(plan.read_text())["etcd"]]
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise ConfigError(f"{plan} cannot be read: {bad}", hint="name the metadata: --meta etcd://...") from None
    if not ports:
        raise ConfigError(f"the cluster in {folder} has its metadata elsewhere", hint="name it: --meta etcd://...")
    meta = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    return Place(meta, f"file:{plan.with_name('secret').absolute()}")


def new_place(to: str) -> Path:
    """Where a copy is put together; ConfigError if the place that it is for is taken."""
    target = Path(to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{to} exists", hint="name a new folder or file for each copy of a cluster")
    aside = target.with_name(f"{target.name}.partial")
    if aside.exists():
        raise ConfigError(f"{aside} exists: a copy was broken off, or is being made", hint="remove it first")
    return aside


async def backup_cluster(
    runtime: Runtime, place: Place, to: str, progress: Progress
) -> tuple[BackupReport, ClusterCopy]:
    """One moment of the cluster into `to`, a new folder or a new file. It is put together aside first."""
    aside = new_place(to)
    try:
        async with ledger_session(runtime, place.meta, place.secret) as client:
            copied = await copy_cluster(runtime, client, str(aside), lambda done: progress(done, 0))
        make = backup_to_file if is_archive(to) else make_backup
        report = await make(runtime, str(aside), to, progress)
    finally:
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
    return report, copied


async def restore_to_cluster(runtime: Runtime, place: Place, copy: str, copies: int, progress: Progress) -> int:
    """How many ledgers were brought into it."""
    async with ledger_session(runtime, place.meta, place.secret) as client:
        if not is_archive(copy):
            return await restore_cluster(runtime, client, copy, copies, progress)
        aside = Path(copy).with_name(f"{Path(copy).name}.partial")
        try:
            await restore_from_file(runtime, copy, str(aside), progress)
            return await restore_cluster(runtime, client, str(aside), copies, progress)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)

"""Folders and S3-compatible stores as one: what is there, read and written whole files at a time.

The client of S3 is pyarrow's, which the lake uses, too; credentials come as they do there, from the environment,
or by the connector's own references.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from weir.connect.options import reveal
from weir.connect.task import Job
from weir.model.diagnosis import install_command
from weir.model.errors import ConfigError, ConnectorError

log = logging.getLogger(__name__)

_REGION = "us-east-1"
#: pyiceberg's names for what Arrow's client is told.
_ICEBERG = {"s3.region": "region", "s3.access-key-id": "access_key", "s3.secret-access-key": "secret_key"}
#: A file that is being written, and the process that does: none that another program has made is taken for one.
_PARTIAL = re.compile(r"\.\d{20}-\d{20}\.\w+\.(\d+)")


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    size: int
    #: ms since 1970.
    changed_ms: int


class Store:
    """Files below one path."""

    def __init__(self, job: Job) -> None:
        try:
            from pyarrow import fs
        except ImportError:
            raise ConfigError("files need pyarrow", hint=f"install it with {install_command('connect')}") from None
        self._fs = fs
        #: Links that lead out of the folder: the log names each once.
        self._outside: set[str] = set()
        path: str = job.option("path")
        parts = urlsplit(path)
        self.local = parts.scheme in ("", "file")
        if self.local:
            self.root = os.path.abspath(parts.path if parts.scheme else path)
            self._files: Any = fs.LocalFileSystem()
        else:
            self.root = (parts.netloc + parts.path).rstrip("/")
            self._s3 = _s3(job)
            self._files = fs.S3FileSystem(**self._s3)

    def for_spark(self, files: "Sequence[StoredFile]") -> "list[str]":
        """Files as Spark's own readers take them. It has no client of S3: objects come by the lake's gateway."""
        if self.local:
            return [f"{self.root}/{one.path}" for one in files]
        try:
            from weir.spark.lake.webhdfs import gateway
        except ImportError as missing:
            raise ConfigError(
                f'engine = "spark" reads S3 by a part of the lake: {missing}',
                hint=f"install it with {install_command('lake')}",
            ) from None
        said = {name: self._s3[key] for name, key in _ICEBERG.items() if key in self._s3}
        if "endpoint_override" in self._s3:
            said["s3.endpoint"] = f"{self._s3['scheme']}://{self._s3['endpoint_override']}"
        versions = [f"{one.changed_ms}-{one.size}" for one in files]
        return gateway().paths([f"s3://{self.root}/{one.path}" for one in files], said, versions)

    def list(self, below: str = "") -> Iterator[StoredFile]:
        """Files by their path below the root, sorted; nothing that begins with a dot or an underscore."""
        fs = self._fs
        base = f"{self.root}/{below}".rstrip("/")
        try:
            found = self._files.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        except OSError as failure:
            raise ConnectorError(f"{base} cannot be listed: {failure}") from None
        for one in sorted(found, key=lambda each: each.path):
            path = one.path[len(self.root) :].lstrip("/")
            hidden = any(part.startswith((".", "_")) for part in path.split("/"))
            if one.type == fs.FileType.File and not hidden and self._is_inside(path):
                yield self._file(path, one)

    def _is_inside(self, path: str) -> bool:
        """Whether a file is below the root. Whoever may write into the folder could else have the runner read any
        file of its machine, by a symbolic link."""
        if not self.local:
            return True
        root, found = os.path.realpath(self.root), os.path.realpath(f"{self.root}/{path}")
        inside = found.startswith(root.rstrip("/") + "/")
        if not inside and path not in self._outside:
            self._outside.add(path)
            log.warning("%s/%s is left out: it is a link to %s, outside of the folder", self.root, path, found)
        return inside

    def _file(self, path: str, found: Any) -> StoredFile:
        return StoredFile(path, found.size, found.mtime_ns // 1_000_000 if found.mtime_ns else 0)

    def look(self, file: StoredFile) -> StoredFile | None:
        """What a file that was listed is like now; None if it is gone. An object is what it was, or another one,
        and never a part of one: a store need not be asked."""
        if not self.local:
            return file
        found = self._files.get_file_info(f"{self.root}/{file.path}")
        there = found.type == self._fs.FileType.File and self._is_inside(file.path)
        return self._file(file.path, found) if there else None

    def check_there(self) -> None:
        """ConnectorError if there is no such folder, or no such bucket: nothing would ever come of it."""
        if self.local:
            there, what = os.path.isdir(self.root), f"folder {self.root}"
        else:
            bucket = self.root.partition("/")[0]
            there, what = True, f"bucket {bucket}"
            with suppress(OSError):  # who may not ask may still read
                there = self._files.get_file_info(bucket).type != self._fs.FileType.NotFound
        if not there:
            raise ConnectorError(f"there is no {what}", hint="make it, or mend path")

    def open(self, path: str) -> Any:
        """A file to read, which can be sought in."""
        return self._files.open_input_file(f"{self.root}/{path}")

    def read(self, path: str) -> bytes:
        """A small file; empty if there is none, or who may write may not read."""
        try:
            with self.open(path) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return b""
        except OSError as failure:
            if "ACCESS_DENIED" in str(failure):
                return b""
            raise ConnectorError(f"{path} cannot be read: {failure}", hint="check path and rights") from None

    def write(self, path: str, data: Any) -> None:
        """The whole file or none of it, also if the process dies meanwhile."""
        try:
            self._write(f"{self.root}/{path}", data)
        except OSError as failure:
            raise ConnectorError(f"{path} cannot be written: {failure}", hint="check path and rights") from None

    def take(self, file: str, path: str) -> None:
        """Make a file of this machine's one of the store's: the whole of it, or nothing."""
        if not self.local:
            from pyarrow import memory_map

            with memory_map(file) as whole:
                self.write(path, whole.read_buffer())
            os.unlink(file)
            return
        target = f"{self.root}/{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _sync(file)
        os.replace(file, target)
        _sync(os.path.dirname(target))

    def sweep(self, below: str) -> None:
        """Take away what writers left that died within a file. Those of this process may be at it."""
        if not self.local:
            return  # an upload that was not ended is nothing that can be seen
        for partial in Path(self.root, below).rglob(".*"):
            writer = _PARTIAL.fullmatch(partial.name)
            if writer is not None and int(writer[1]) != os.getpid():
                partial.unlink(missing_ok=True)

    def _write(self, full: str, data: Any) -> None:
        if not self.local:
            with self._files.open_output_stream(full, compression=None) as out:
                out.write(data)
            return
        folder, name = os.path.split(full)
        os.makedirs(folder, exist_ok=True)
        partial = os.path.join(folder, f".{name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            os.unlink(partial)  # of a process with this number that died; or a link of somebody else's
        with open(partial, "xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, full)
        _sync(folder)


def _s3(job: Job) -> dict[str, Any]:
    """Nothing asks the network for what was not named: a client that is not told its region would."""
    environment = os.environ
    endpoint = (
        job.option("endpoint") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    )
    region = job.option("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    found: dict[str, Any] = {"region": region or _REGION}
    if endpoint:
        # Servers that are not Amazon's may not know the checksums that its client sends behind each upload.
        environment.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        parts = urlsplit(endpoint)
        found |= {"scheme": parts.scheme or "https", "endpoint_override": parts.netloc or endpoint}
    if job.option("access_key") is not None:
        found |= {
            "access_key": reveal(job.option("access_key")),
            "secret_key": reveal(job.option("secret_key")),
        }
    return found


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def path_of_spark(address: str, root: str) -> str:
    """Below `root`, by the address that Spark has for a file: of an object, that of the gateway."""
    if address.startswith("webhdfs:"):
        from weir.spark.lake.webhdfs import file_behind

        path = file_behind(address).partition("://")[2]
    else:
        path = unquote(urlsplit(address).path)
    return path.removeprefix(root).lstrip("/")

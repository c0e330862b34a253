"""Folders and S3-compatible stores as one: what is there, read and written whole files at a time.

The client of S3 is pyarrow's, which the lake uses, too; credentials come as they do there, from the environment,
or by the connector's own references.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from weir.connect.secrets import reveal
from weir.connect.task import Job
from weir.model.errors import ConfigError, ConnectorError
from weir.model.installation import install_command

_REGION = "us-east-1"
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
        path: str = job.option("path")
        parts = urlsplit(path)
        self.local = parts.scheme in ("", "file")
        if self.local:
            self.root = os.path.abspath(parts.path if parts.scheme else path)
            self._files: Any = fs.LocalFileSystem()
        else:
            self.root = (parts.netloc + parts.path).rstrip("/")
            self._files = fs.S3FileSystem(**self._s3(job))

    def _s3(self, job: Job) -> dict[str, Any]:
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
            if one.type == fs.FileType.File and not hidden:
                yield self._file(path, one)

    def _file(self, path: str, found: Any) -> StoredFile:
        return StoredFile(path, found.size, found.mtime_ns // 1_000_000 if found.mtime_ns else 0)

    def look(self, file: StoredFile) -> StoredFile | None:
        """What a file that was listed is like now; None if it is gone. An object is what it was, or another one,
        and never a part of one: a store need not be asked."""
        if not self.local:
            return file
        found = self._files.get_file_info(f"{self.root}/{file.path}")
        return self._file(file.path, found) if found.type == self._fs.FileType.File else None

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

    def write(self, path: str, data: bytes) -> None:
        """The whole file or none of it, also if the process dies meanwhile."""
        try:
            self._write(f"{self.root}/{path}", data)
        except OSError as failure:
            raise ConnectorError(f"{path} cannot be written: {failure}", hint="check path and rights") from None

    def sweep(self, below: str) -> None:
        """Take away what writers left that died within a file. Those of this process may be at it."""
        if not self.local:
            return  # an upload that was not ended is nothing that can be seen
        for partial in Path(self.root, below).rglob(".*"):
            writer = _PARTIAL.fullmatch(partial.name)
            if writer is not None and int(writer[1]) != os.getpid():
                partial.unlink(missing_ok=True)

    def _write(self, full: str, data: bytes) -> None:
        if not self.local:
            with self._files.open_output_stream(full) as out:
                out.write(data)
            return
        folder, name = os.path.split(full)
        os.makedirs(folder, exist_ok=True)
        partial = os.path.join(folder, f".{name}.{os.getpid()}")
        with open(partial, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, full)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

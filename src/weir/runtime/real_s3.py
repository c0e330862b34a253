"""Objects in a bucket of an S3-compatible server, by Arrow's client on its own threads.

The extra `lake` installs Arrow, which exports use already. Secrets are read from the environment of the broker.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from weir.model.diagnosis import install_command
from weir.model.errors import ObjectMissingError, ObjectStoreError
from weir.model.ids import Buffer

T = TypeVar("T")

#: Option names of pyiceberg, which `weir lake on --option` accepts, and the environment variables of AWS tools.
_FROM_ENVIRONMENT = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
}
#: Every S3-compatible server accepts this; without it Arrow would ask the network.
_REGION = "us-east-1"
_CONNECT_S, _REQUEST_S = 5.0, 30.0
#: Concurrent requests, over all stores of the process.
_THREADS = 8
#: Buffer size for writes to Arrow, which sends parts of 10 MB.
_WRITE_BYTES = 1024 * 1024
#: Maximum of open objects per store.
_SOURCES = 16

_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weir-s3")


class S3Store:
    """A bucket, or a folder in it. Create it with `open`."""

    def __init__(self, options: tuple[tuple[str, str], ...], url: str) -> None:
        self._options = options
        self._url = url
        self._path = url.partition("://")[2].rstrip("/")
        #: Open objects; each one has its object's size, which costs a request.
        self._sources: OrderedDict[str, Any] = OrderedDict()

    @classmethod
    def open(cls, url: str, options: Mapping[str, str]) -> "S3Store":
        said = {}
        for name, variables in _FROM_ENVIRONMENT.items():
            found = next((os.environ[one] for one in variables if os.environ.get(one)), None)
            if found is not None:
                said[name] = found
        return cls(tuple(sorted((said | dict(options)).items())), url)

    @property
    def _files(self) -> Any:
        """The client. Call this on a thread: loading Arrow takes a second, and would block the loop."""
        return _client(self._options)

    async def put(self, name: str, pieces: AsyncIterable[Buffer]) -> int:
        path, size = f"{self._path}/{name}", 0
        out = await self._do(name, lambda: self._files.open_output_stream(path))
        try:
            gathered, gathered_bytes = list[Buffer](), 0
            async for piece in pieces:
                gathered.append(piece)
                gathered_bytes += len(piece)
                if gathered_bytes >= _WRITE_BYTES:
                    await self._do(name, partial(out.write, b"".join(gathered)))
                    size += gathered_bytes
                    gathered, gathered_bytes = [], 0
            await self._do(name, partial(out.write, b"".join(gathered)))
        except BaseException:
            # The close creates the object: delete an incomplete one immediately.
            with suppress(ObjectStoreError):
                await self._do(name, out.close)
            with suppress(ObjectStoreError):
                await self.delete(name)
            raise
        await self._do(name, out.close)
        return size + gathered_bytes

    async def read(self, name: str, position: int, length: int) -> bytes | bytearray:
        source: Any = self._sources.get(name)
        if source is None:
            source = await self._do(name, lambda: self._files.open_input_file(f"{self._path}/{name}"))
            self._sources[name] = source
            if len(self._sources) > _SOURCES:
                self._sources.popitem(last=False)  # reads in progress keep it open
        self._sources.move_to_end(name)

        def ranged() -> bytes:
            data: bytes = source.read_at(max(0, min(length, source.size() - position)), position)
            return data

        try:
            return await self._do(name, ranged)
        except ObjectStoreError:
            self._sources.pop(name, None)
            raise

    async def size(self, name: str) -> int:
        def asked() -> int:
            info = self._files.get_file_info(f"{self._path}/{name}")
            if not info.is_file:
                raise FileNotFoundError(name)
            return int(info.size)

        return await self._do(name, asked)

    async def delete(self, name: str) -> None:
        self._sources.pop(name, None)

        def gone() -> None:
            with suppress(FileNotFoundError):
                self._files.delete_file(f"{self._path}/{name}")

        await self._do(name, gone)

    async def list(self) -> list[str]:
        def asked() -> list[str]:
            files = self._files
            from pyarrow.fs import FileSelector

            found = files.get_file_info(FileSelector(self._path, allow_not_found=True))
            return sorted(info.base_name for info in found if info.is_file)

        return await self._do("", asked)

    async def clear(self) -> None:
        for name in await self.list():
            await self.delete(name)
        with suppress(ObjectStoreError):  # Arrow leaves a marker of the folder
            await self._do("", lambda: self._files.delete_dir(self._path))

    async def _do(self, name: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(_threads, partial(self._told, name, work))

    def _told(self, name: str, work: Callable[[], T]) -> T:
        with _translated(f"{self._url}/{name}" if name else self._url):
            return work()


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate Arrow's errors to those of a store."""
    try:
        yield
    except FileNotFoundError as missing:
        raise ObjectMissingError(f"there is no {url}") from missing
    except (OSError, ValueError) as failed:
        raise ObjectStoreError(f"{url}: {failed}") from failed


@lru_cache(maxsize=64)
def _client(options: tuple[tuple[str, str], ...]) -> Any:
    try:
        from pyarrow.fs import S3FileSystem
    except ImportError:
        raise ObjectStoreError(
            "tiered storage in a bucket needs pyarrow, which is not installed where the broker runs",
            hint=f"install it with {install_command('lake')}",
        ) from None
    said = dict(options)
    if "s3.endpoint" in said:
        # Servers other than Amazon's may not support the checksums that the client appends to each upload.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    scheme, _, host = said.get("s3.endpoint", "").rpartition("://")
    with _translated(said.get("s3.endpoint", "S3")):
        return S3FileSystem(
            access_key=said.get("s3.access-key-id"),
            secret_key=said.get("s3.secret-access-key"),
            session_token=said.get("s3.session-token"),
            region=said.get("s3.region", _REGION),
            endpoint_override=host or None,
            scheme=scheme or "https",
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            background_writes=True,
        )

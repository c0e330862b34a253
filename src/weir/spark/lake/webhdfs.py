"""Files of a bucket for Spark's own Parquet reader, which has no client of S3: a WebHDFS of this process' own.

PySpark brings Hadoop's client of WebHDFS, which asks for ranges; this answers them out of the store by Arrow. So
footers, columns and row groups are read, and nothing else. It listens on the loopback only, behind a word that
only this process knows; it is for sessions whose tasks run on this machine. A store that is away is waited for;
what it does not answer is an error, and never a part of a file.
"""

import json
import logging
import secrets
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from weir.model.errors import LakeError, WeirError
from weir.spark.lake.catalog import PatientReads, suit_store

log = logging.getLogger(__name__)

_PREFIX = "/webhdfs/v1"
#: In place of a scheme: what follows is a version and a name in letters.
_NAMED = "named"
_FIRST_PIECE, _LARGEST_PIECE = 256 * 1024, 8 * 1024 * 1024
_BLOCK_BYTES = 128 * 1024 * 1024


def _named(file: str, version: str) -> str:
    """In letters that mean nothing to anybody, but for an end by which readers know what to unpack."""
    letters = urlsafe_b64encode(file.encode()).decode().rstrip("=")
    return f"{_NAMED}/{version}.{letters}{'.gz' if file.endswith('.gz') else ''}"


def file_behind(address: str) -> str:
    """The file of a path with a version."""
    letters = address.rpartition("/")[2].split(".")[1]
    return urlsafe_b64decode(letters + "=" * (-len(letters) % 4)).decode()


class StoreGateway:
    """`paths` makes files of a store readable; they are served for as long as the process lives."""

    def __init__(self) -> None:
        self._word = secrets.token_urlsafe(24)
        self._stores: list[tuple[tuple[tuple[str, str], ...], Any]] = []
        self._patience: dict[str, PatientReads] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="weir-lake-gateway", daemon=True).start()

    def paths(
        self, files: Sequence[str], options: Mapping[str, str], versions: Sequence[str] | None = None
    ) -> list[str]:
        """The same files, as Spark reads them. With versions they may have any names, which Hadoop's client would
        not all ask for as they are, and may become others: what is known of a file is kept by its path."""
        number, host = self._store(options), f"127.0.0.1:{self._server.server_address[1]}"
        base = f"webhdfs://{host}/{self._word}/{number}"
        if versions is None:
            return [f"{base}/{one.replace('://', '/', 1)}" for one in files]
        return [f"{base}/{_named(one, version)}" for one, version in zip(files, versions, strict=True)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _store(self, options: Mapping[str, str]) -> int:
        from pyiceberg.io import load_file_io

        key = tuple(sorted(options.items()))
        with self._lock:
            for number, (known, _) in enumerate(self._stores):
                if known == key:
                    return number
            suit_store(options)
            self._stores.append((key, load_file_io(dict(options), "s3://")))
            return len(self._stores) - 1

    def _find(self, path: str) -> tuple[Any, str] | None:
        """The store and the file that a path of WebHDFS means; None if it is not for whoever asks."""
        word, _, rest = unquote(path).lstrip("/").partition("/")
        number, _, file = rest.partition("/")
        if not secrets.compare_digest(word, self._word) or not number.isdigit():
            return None
        scheme, _, name = file.partition("/")
        return self._stores[int(number)][1], file_behind(path) if scheme == _NAMED else f"{scheme}://{name}"

    def trouble(self) -> LakeError | None:
        """What is wrong with a store that did not answer last: Spark may only know that a file ended too early."""
        return next((found for one in list(self._patience.values()) if (found := one.trouble())), None)

    def _open(self, path: str) -> "_Reader":
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(path)
        store, file = found
        bucket = "/".join(file.split("/")[:3])
        with self._lock:
            patient = self._patience.setdefault(bucket, PatientReads(bucket))
        return _Reader(store, file, patient)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gateway = self

        @lru_cache(maxsize=10_000)
        def size_of(path: str) -> int:
            return gateway._open(path).size()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                given = {name.lower(): values[0] for name, values in parse_qs(asked.query).items()}
                path, op = asked.path.removeprefix(_PREFIX), given.get("op", "").upper()
                try:
                    self._answer(path, op, given)
                except FileNotFoundError:
                    self._refuse(404, "FileNotFoundException", "java.io.FileNotFoundException")
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the reader has what it wanted
                except Exception as failure:
                    log.info("a file of the lake cannot be read: %s", failure)
                    self._refuse(500, _said(failure), "java.io.IOException")

            def _answer(self, path: str, op: str, given: Mapping[str, str]) -> None:
                size = size_of(path)
                match op:
                    case "GETFILESTATUS":
                        self._json({"FileStatus": _status(size)})
                    case "LISTSTATUS":
                        self._json({"FileStatuses": {"FileStatus": [_status(size)]}})
                    case "GETFILEBLOCKLOCATIONS" | "GET_BLOCK_LOCATIONS":
                        self._json({"BlockLocations": {"BlockLocation": [_place(size)]}})
                    case "OPEN" if "weir" not in given:
                        host = self.headers["Host"]
                        more = f"&length={given['length']}" if "length" in given else ""
                        offset = given.get("offset", "0")
                        self.send_response(307)
                        where = (
                            f"http://{host}{_PREFIX}{quote(unquote(path))}?op=OPEN&offset={offset}{more}&weir=1"
                        )
                        self.send_header("Location", where)
                        self.send_header("Content-Length", "0")
                        self.end_headers()
                    case "OPEN":
                        first = int(given.get("offset", 0))
                        self._range(path, first, min(size - first, int(given.get("length", size))))
                    case _:
                        self._refuse(400, f"{op} is not served", "java.lang.UnsupportedOperationException")

            def _range(self, path: str, first: int, length: int) -> None:
                """In pieces that grow: whoever wants a footer only goes away after the first one. That is read
                before anything is answered; behind it an error can only be told by an end that is too early."""
                piece, at, end = _FIRST_PIECE, first, first + length
                with closing(gateway._open(path)) as file:
                    data = file.read(at, min(piece, length))
                    self.send_response(200)
                    self.send_header("Content-Length", str(max(0, length)))
                    self.end_headers()
                    while True:
                        self.wfile.write(data)
                        at, piece = at + len(data), min(2 * piece, _LARGEST_PIECE)
                        if at >= end:
                            return
                        try:
                            data = file.read(at, min(piece, end - at))
                        except Exception as failure:
                            log.info("a file of the lake cannot be read on: %s", failure)
                            raise ConnectionResetError from failure

            def _json(self, body: object) -> None:
                self._send(200, json.dumps(body).encode())

            def _refuse(self, status: int, what: str, kind: str) -> None:
                name = kind.rpartition(".")[2]
                told = {"RemoteException": {"exception": name, "javaClassName": kind, "message": what}}
                self._send(status, json.dumps(told).encode())

            def _send(self, status: int, body: bytes) -> None:
                """Without a type: Hadoop's client would look at it with classes that PySpark does not bring."""
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name there)
                pass

        return Handler


class _Reader:
    """A file of a store, opened again where the store was away. FileNotFoundError, LakeError."""

    def __init__(self, store: Any, file: str, patient: PatientReads) -> None:
        self._store, self._file, self._patient = store, file, patient
        self._stream: Any = None

    def size(self) -> int:
        return self._patient(lambda: len(self._store.new_input(self._file)))

    def read(self, first: int, length: int) -> bytes:
        """All of these bytes."""
        data = self._patient(lambda: self._piece(first, length)) if length > 0 else b""
        if len(data) != max(0, length):
            raise LakeError(f"{self._file} ends before its end", hint="is it being written anew?")
        return data

    def _piece(self, first: int, length: int) -> bytes:
        try:
            if self._stream is None:
                self._stream = self._store.new_input(self._file).open()
            self._stream.seek(first)
            return bytes(self._stream.read(length))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


@lru_cache(maxsize=1)
def gateway() -> StoreGateway:
    """The one of this process."""
    return StoreGateway()


def _said(failure: Exception) -> str:
    """With the error's own name, by which it is found in what Spark says of it."""
    if isinstance(failure, WeirError):
        return f"{type(failure).__module__}.{type(failure).__name__}: {failure.what}"
    return str(failure)


def _status(size: int) -> dict[str, object]:
    return {
        "accessTime": 0,
        "blockSize": _BLOCK_BYTES,
        "group": "weir",
        "length": size,
        "modificationTime": 0,
        "owner": "weir",
        "pathSuffix": "",
        "permission": "444",
        "replication": 1,
        "type": "FILE",
    }


def _place(size: int) -> dict[str, object]:
    return {
        "cachedHosts": [],
        "corrupt": False,
        "hosts": ["localhost"],
        "length": size,
        "names": ["localhost:0"],
        "offset": 0,
        "storageTypes": ["DISK"],
        "topologyPaths": ["/default-rack/localhost:0"],
    }

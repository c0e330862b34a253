"""A real S3-compatible server for tests: SeaweedFS, whose program is a wheel of the extra `test`.

It checks signatures, and keeps objects in volumes with an index of its own, so what it does when it is killed is
what a store in service does.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

_START_TIMEOUT_S = 120.0
#: Each has an HTTP and a gRPC port.
_PARTS = ("master", "volume", "filer", "s3")


class S3Server:
    """One bucket, on a port of its own, which it keeps when it is killed and started again."""

    bucket = "lake"
    environment: ClassVar[dict[str, str]] = {
        "AWS_ACCESS_KEY_ID": "weir",
        "AWS_SECRET_ACCESS_KEY": "weirweir",
        "AWS_EC2_METADATA_DISABLED": "true",
    }

    def __init__(self, program: Path, folder: Path) -> None:
        self._folder = folder
        ports = _free_ports(2 * len(_PARTS))
        self._port = {part: (ports.pop(), ports.pop()) for part in _PARTS}
        self.url = f"http://127.0.0.1:{self._port['s3'][0]}"
        self._command = [str(program), "-logtostderr", "server", *self._options()]
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path) -> "S3Server | None":
        """None if it is not installed."""
        program = _program()
        if program is None:
            return None
        server = cls(program, folder)
        server.again()
        return server

    @property
    def is_away(self) -> bool:
        return self._process is None

    def again(self) -> None:
        """Start it over what it had."""
        with (self._folder / "s3.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._folder, env=_environment()
            )
        self._wait()

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def kill_and_restart(self) -> None:
        """As a crash, and its end: what was asked just then is never answered."""
        self.kill()
        self.again()

    def close(self) -> None:
        """At once, with the sockets that it makes beside its folder."""
        self.kill()
        for part, (_, grpc) in self._port.items():
            Path(f"/tmp/seaweedfs-{part}-grpc-{grpc}.sock").unlink(missing_ok=True)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nobody meanwhile, and goes on then."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @property
    def files(self) -> Any:
        """Arrow's client of it."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=self.environment["AWS_ACCESS_KEY_ID"],
            secret_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            endpoint_override=self.url.removeprefix("http://"),
            scheme="http",
            connect_timeout=5.0,
            request_timeout=30.0,
            allow_bucket_creation=True,
        )

    def _options(self) -> Iterator[str]:
        (self._folder / "data").mkdir()
        users = self._folder / "users.json"
        keys = {
            "accessKey": self.environment["AWS_ACCESS_KEY_ID"],
            "secretKey": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        user = {"name": "weir", "credentials": [keys], "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
        users.write_text(json.dumps({"identities": [user]}))
        yield from ("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self._folder / 'data'}", "-filer", "-s3")
        for part, (port, grpc) in self._port.items():
            yield from (f"-{part}.port={port}", f"-{part}.port.grpc={grpc}")
        yield from ("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={users}", "-s3.iam=false")
        # Nobody is told, no disk is taken in advance, and a machine with little left of it still has room.
        yield from ("-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=50")
        yield from ("-volume.minFreeSpace=1", "-volume.preStopSeconds=0")
        yield from ("-master.electionTimeout=1s", "-master.heartbeatInterval=100ms")
        for part in ("filer", "s3"):
            yield f"-{part}.localSocket={self._folder / part}.sock"

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        why: Exception | None = None
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                files, name = self.files, f"{self.bucket}/started"
                files.create_dir(self.bucket)
                with files.open_output_stream(name) as out:
                    out.write(b"yes")
                files.delete_file(name)
                return
            except OSError as not_yet:
                why = not_yet
                time.sleep(0.1)
        self.close()
        said = (self._folder / "s3.log").read_text(errors="replace")[-4000:]
        raise RuntimeError(f"the S3 server did not start: {why}\n{said}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = []
        for _ in range(count):
            free = held.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            found.append(int(free.getsockname()[1]))
        return found


def _environment() -> dict[str, str]:
    """Without keys of whoever runs the tests: it would take them for those of its administrator."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {"GOMEMLIMIT": "256MiB"}


def _program() -> Path | None:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    return None if found is None else Path(found)

"""A real S3-compatible server, fetched once by Go's own tools and kept in the cache folder."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar

#: Serves S3's REST from files; a program of its own.
_MODULE = "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0"
_FETCH_TIMEOUT_S = 300
_START_TIMEOUT_S = 60.0


class S3Server:
    """One bucket, on a port of its own."""

    bucket = "lake"
    environment: ClassVar[dict[str, str]] = {
        "AWS_ACCESS_KEY_ID": "weir",
        "AWS_SECRET_ACCESS_KEY": "weirweir",
        "AWS_EC2_METADATA_DISABLED": "true",
    }

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self._process = process
        self.url = url

    @classmethod
    def start(cls, folder: Path) -> "S3Server | None":
        """None if it is not to be had here."""
        program = _program()
        if program is None:
            return None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"127.0.0.1:{port}"
        (folder / "meta").mkdir()
        (folder / "files").mkdir()
        with (folder / "s3.log").open("wb") as log:
            command = [str(program), "-host", address, "-backend", "fs", "-fs.path", str(folder / "files")]
            command += ["-fs.meta", str(folder / "meta"), "-initialbucket", cls.bucket]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        server = cls(process, f"http://{address}")
        server._wait()
        return server

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/{self.bucket}", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.05)
        self.close()
        raise RuntimeError("the S3 server did not start")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _program() -> Path | None:
    go = shutil.which("go")
    cache = Path(os.environ.get("WEIR_BENCH_CACHE", Path.home() / ".cache" / "weir-bench")) / "gofakes3-1.2.0"
    made = cache / "gofakes3"
    if made.exists():
        return made
    if go is None:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            [go, "install", _MODULE],
            env={**os.environ, "GOBIN": str(cache)},
            check=True,
            capture_output=True,
            timeout=_FETCH_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return made

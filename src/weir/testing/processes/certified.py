"""`weir up` that asks every client for a certificate, and has no open listener: who comes in does so by one."""

import subprocess
import sys
from pathlib import Path

from weir.client.admin import Access
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess, environment

_SETTINGS = (
    *("listeners.kafka=", "listeners.http=", "listeners.https=127.0.0.1:0", "listeners.kafka_tls=127.0.0.1:0"),
    *("auth.authenticate=true", "auth.authorise=true", "auth.superusers=admin"),
)


class CertifiedUp:
    """With certificates of `admin`, of `nobody`, who may do nothing, and of `other`, whom it does not trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        server = make_certificate(folder)
        (folder / "other").mkdir()
        strangers = make_certificate(folder / "other")
        self.ca = str(server.file)
        self._certificates = {
            "admin": make_certificate(folder, "admin", server),
            "nobody": make_certificate(folder, "nobody", server),
            "other": make_certificate(folder / "other", "admin", strangers),
        }
        tls = (f"tls.certificate={server.file}", f"tls.key={server.key_file}", f"tls.client_ca={server.file}")
        certificate, key = self.files("admin")
        runner = (f"functions.ca={self.ca}", f"functions.certificate={certificate}", f"functions.key={key}")
        self.up = UpProcess(folder, *_SETTINGS, *tls, *runner)

    @property
    def url(self) -> str:
        return f"https://{self.up.addresses['https']}"

    @property
    def kafka(self) -> str:
        return self.up.addresses["kafka_tls"]

    def files(self, who: str | None) -> tuple[str | None, str | None]:
        """Certificate and key."""
        if who is None:
            return None, None
        return str(self._certificates[who].file), str(self._certificates[who].key_file)

    def access(self, who: str | None) -> Access:
        return Access(self.url, None, self.ca, 5.0, *self.files(who))

    def weir(self, who: str | None, *arguments: str) -> tuple[int, str]:
        """A command's exit code, and what it said; of errors one line."""
        command = [sys.executable, "-m", "weir.cli.main", *arguments, "--url", self.url, "--ca", self.ca]
        for name, file in zip(("--cert", "--cert-key"), self.files(who), strict=True):
            command += [] if file is None else [name, file]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=False)
        said = [line for line in done.stderr.splitlines() if not line.startswith("server: ")]
        assert len(said) <= 1, done.stderr
        return done.returncode, done.stdout + done.stderr

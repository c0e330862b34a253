"""Options that say which server a command talks to and as whom, and the clients made from them."""

import os
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from weir.client.addresses import ServerUrl, parse_url
from weir.client.admin import AdminClient
from weir.client.pulsar import PulsarClient
from weir.client.settings import ClientSettings
from weir.client.tls import trusting
from weir.model.errors import ConfigError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Remote:
    """A server, and how to come in."""

    url: str
    token: str | None
    ca: str | None
    certificate: str | None
    key: str | None

    def admin(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with a client of the admin REST."""

        async def main(runtime: Runtime) -> T:
            async with AdminClient(runtime, self.url, self._settings(parse_url(self.url))) as client:
                return await work(client)

        return run(main)

    def broker(self, topic: str, work: Callable[[Runtime, PulsarClient], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with a client of the broker that serves the topic, which the admin REST finds if need be."""

        async def main(runtime: Runtime) -> T:
            url = parse_url(self.url)
            settings = self._settings(url)
            where = str(url)
            if url.http:
                async with AdminClient(runtime, self.url, settings) as admin:
                    where = await admin.broker_url(TopicName.parse(topic), secure=url.secure)
            async with PulsarClient(runtime, where, settings) as client:
                return await work(runtime, client)

        return run(main)

    def _settings(self, url: ServerUrl) -> ClientSettings:
        return ClientSettings(token=self._token(), tls=self._tls() if url.secure else None)

    def environment(self) -> dict[str, str]:
        """The variables of a child process that comes in as this one does."""
        given = {"WEIR_TOKEN": self.token} if self.token is not None else {}
        return {**os.environ, **given}

    def read_token(self) -> str | None:
        """The token itself, also where a file has it."""
        return self._token()

    def _token(self) -> str | None:
        if self.token is None or not self.token.startswith("file:"):
            return self.token
        path = Path(self.token.removeprefix("file:").removeprefix("//"))
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise ConfigError(f"cannot read the token: {failure}", hint="check --token") from None

    def _tls(self) -> ssl.SSLContext:
        try:
            context = trusting(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise ConfigError(
                f"TLS files cannot be used: {failure}", hint="check --ca, --cert and --cert-key"
            ) from None
        return context


_OPTIONS = (
    click.option(
        "--url",
        envvar="WEIR_URL",
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="The server. [env: WEIR_URL]",
    ),
    click.option(
        "--token",
        envvar="WEIR_TOKEN",
        metavar="TOKEN",
        help="Who you are: a token, or file:/path. [env: WEIR_TOKEN]",
    ),
    click.option(
        "--ca", envvar="WEIR_CA", metavar="FILE", help="TLS: CAs to trust, if not the system's. [env: WEIR_CA]"
    ),
    click.option(
        "--cert", "certificate", envvar="WEIR_CERTIFICATE", metavar="FILE", help="TLS: your certificate."
    ),
    click.option("--cert-key", "cert_key", envvar="WEIR_KEY", metavar="FILE", help="TLS: your private key."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
)


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a server, folded into one `remote` argument, and `--json` as `as_json`."""

    @wraps(command)
    def folded(
        *args: Any,
        url: str,
        token: str | None,
        ca: str | None,
        certificate: str | None,
        cert_key: str | None,
        **rest: Any,
    ) -> Any:
        return command(*args, remote=Remote(url, token, ca, certificate, cert_key), **rest)

    options: Callable[..., Any] = folded
    for option in reversed(_OPTIONS):
        options = option(options)
    return options

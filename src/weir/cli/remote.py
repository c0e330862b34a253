"""Options that say which server a command talks to and as whom, and the clients made from them.

The clients are imported when they are made: `weir sql`, which talks to a server of its own, answers sooner.
"""

import inspect
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from weir.cli.found import DEFAULT_URL, find_url
from weir.cli.output import Format, Output
from weir.model.errors import ConfigError, ConnectFailedError

if TYPE_CHECKING:
    import ssl

    from weir.client.addresses import ServerUrl
    from weir.client.admin import AdminClient
    from weir.client.blocking import Access
    from weir.client.pulsar import PulsarClient
    from weir.client.settings import ClientSettings
    from weir.runtime.interfaces import Runtime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remote:
    """A server, and how to come in."""

    url: str
    token: str | None
    ca: str | None
    certificate: str | None
    key: str | None

    def admin(self, work: "Callable[[AdminClient], Coroutine[Any, Any, T]]") -> T:
        """Run `work` with a client of the admin REST."""

        from weir.client.addresses import parse_url
        from weir.client.admin import AdminClient

        async def main(runtime: "Runtime") -> T:
            async with AdminClient(runtime, self.url, self.settings(parse_url(self.url))) as client:
                return await work(client)

        return self._run(main)

    def broker(self, topic: str, work: "Callable[[Runtime, PulsarClient], Coroutine[Any, Any, T]]") -> T:
        """Run `work` with a client of the broker that serves the topic, which the admin REST finds if need be."""

        from weir.client.addresses import parse_url
        from weir.client.admin import AdminClient
        from weir.client.pulsar import PulsarClient
        from weir.model.topics import TopicName

        async def main(runtime: "Runtime") -> T:
            url = parse_url(self.url)
            settings = self.settings(url)
            where = str(url)
            if url.http:
                async with AdminClient(runtime, self.url, settings) as admin:
                    where = await admin.broker_url(TopicName.parse(topic), secure=url.secure)
            async with PulsarClient(runtime, where, settings) as client:
                return await work(runtime, client)

        return self._run(main)

    def reach(self) -> None:
        """ConnectFailedError if nothing listens there: said before something slow is started for it."""
        from weir.client.addresses import parse_url

        async def main(runtime: "Runtime") -> None:
            url = parse_url(self.url)
            (await runtime.net.connect(url.host, url.port)).close()

        self._run(main)

    def _run(self, main: "Callable[[Runtime], Coroutine[Any, Any, T]]") -> T:
        """A server that is not there is named, with what can be done about it."""
        from weir.runtime.real import run

        try:
            return run(main)
        except ConnectFailedError as failure:
            if failure.hint != ConnectFailedError.hint:
                raise
            raise ConnectFailedError(
                f"nothing answers at {self.url}: {failure.what}",
                hint="start it with `weir up`, or name another server with --url or WEIR_URL",
            ) from None

    def settings(self, url: "ServerUrl | None" = None) -> "ClientSettings":
        """How to come in to this server, or to the one that it names."""
        from weir.client.addresses import parse_url
        from weir.client.settings import ClientSettings

        url = parse_url(self.url) if url is None else url
        return ClientSettings(offsets=True, token=self._token(), tls=self._tls() if url.secure else None)

    def access(self, patience_s: float = 60.0) -> "Access":
        """For blocking clients and for other processes: paths are whole. `patience_s`: how long the server may be
        away. ConfigError if a file is not there."""
        from weir.client.blocking import Access

        whole = []
        for name, file in (("--ca", self.ca), ("--cert", self.certificate), ("--cert-key", self.key)):
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"there is no file {file}", hint=f"check {name}")
            whole.append(None if file is None else os.path.abspath(file))
        ca, certificate, key = whole
        return Access(self.url, self.read_token(), ca, patience_s, certificate, key)

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
            raise ConfigError(f"cannot read the token: {failure}", hint="check --token and --token-file") from None

    def _tls(self) -> "ssl.SSLContext":
        import ssl

        from weir.client.tls import trusting

        try:
            context = trusting(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise ConfigError(
                f"TLS files cannot be used: {failure}", hint="check --ca, --cert and --cert-key"
            ) from None
        return context


#: The environment's word for each option.
VARIABLES = {
    "url": "WEIR_URL",
    "token": "WEIR_TOKEN",
    "token_file": "WEIR_TOKEN_FILE",
    "ca": "WEIR_CA",
    "certificate": "WEIR_CERTIFICATE",
    "cert_key": "WEIR_KEY",
}

_OPTIONS = (
    click.option(
        "--url",
        envvar="WEIR_URL",
        metavar="URL",
        help=f"The server; by default the one that runs in ./weir-data, else {DEFAULT_URL}. [env: WEIR_URL]",
    ),
    click.option(
        "--token",
        envvar="WEIR_TOKEN",
        metavar="TOKEN",
        help="Who you are: a token, or file:/path. [env: WEIR_TOKEN]",
    ),
    click.option(
        "--token-file",
        envvar="WEIR_TOKEN_FILE",
        metavar="FILE",
        help="The same in a file. [env: WEIR_TOKEN_FILE]",
    ),
    click.option(
        "--ca", envvar="WEIR_CA", metavar="FILE", help="TLS: CAs to trust, if not the system's. [env: WEIR_CA]"
    ),
    click.option(
        "--cert", "certificate", envvar="WEIR_CERTIFICATE", metavar="FILE", help="TLS: your certificate."
    ),
    click.option("--cert-key", "cert_key", envvar="WEIR_KEY", metavar="FILE", help="TLS: your private key."),
)


def _format_options(formats: tuple[Format, ...]) -> tuple[Callable[..., Any], ...]:
    names = [one.value for one in formats]
    return (
        click.option(
            "-o",
            "--output",
            "output_format",
            type=click.Choice(names),
            help="How to print it; table by default, which fits the terminal.",
        ),
        click.option("--json", "json_flag", is_flag=True, help="Short for -o json."),
    )


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `-o` and `--json`, folded into an `out: Output`; or into `as_json: bool` for a command that
    says what it did, and has no table to show."""
    wanted = inspect.signature(command).parameters
    plain = "out" not in wanted

    @wraps(command)
    def folded(*args: Any, output_format: str | None, json_flag: bool, **rest: Any) -> Any:
        if json_flag and output_format not in (None, Format.JSON.value):
            raise ConfigError(f"--json and -o {output_format} exclude each other", hint="give one of them")
        out = Output(Format.JSON if json_flag else Format(output_format or Format.TABLE.value))
        if "as_json" in wanted:
            rest["as_json"] = out.json
        if not plain:
            rest["out"] = out
        return command(*args, **rest)

    options: Callable[..., Any] = folded
    for option in reversed(_format_options((Format.TABLE, Format.JSON) if plain else tuple(Format))):
        options = option(options)
    return options


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a server, folded into one `remote` argument, and those of its answer."""

    @wraps(command)
    def folded(
        *args: Any,
        url: str | None,
        token: str | None,
        token_file: str | None,
        ca: str | None,
        certificate: str | None,
        cert_key: str | None,
        **rest: Any,
    ) -> Any:
        chosen = choose_token(token, token_file)
        return command(*args, remote=Remote(find_url(url), chosen, ca, certificate, cert_key), **rest)

    options: Callable[..., Any] = output_options(folded)
    for option in reversed(_OPTIONS):
        options = option(options)
    return options


def choose_token(token: str | None, token_file: str | None) -> str | None:
    """What the command line says wins over what the environment says."""
    if token is not None and token_file is not None:
        given = [name for name in ("token", "token_file") if _from_command_line(name)]
        if len(given) == 2:
            raise ConfigError("--token and --token-file exclude each other", hint="give one of them")
        if given == ["token"]:
            return token
    return token if token_file is None else f"file:{token_file}"


def _from_command_line(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE

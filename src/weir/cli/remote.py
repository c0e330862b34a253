"""Server options of commands, the choice of the server, and the clients for it.

A command must never talk to another server by accident. In a folder with a data folder, only the process that
serves that data folder is its server: `listening.json` names the process, its folder and a random id of its start
(`instance`). The server must confirm the id before the command sends anything else. Without a data folder, the
server is the named one, or the default address.

Client modules are imported on first use, so that `weir sql`, which uses its own server, starts faster.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import click
from click.core import ParameterSource

from weir.cli.arguments import short_topic
from weir.cli.output import Format, Output
from weir.model.check import check
from weir.model.errors import (
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    NetworkError,
    TlsFailedError,
    TlsRefusedError,
    TopicNotFoundError,
    WeirError,
    WireError,
)

if TYPE_CHECKING:
    import ssl

    from weir.client.access import ClientSettings, ServerUrl
    from weir.client.admin import Access, AdminClient
    from weir.client.pulsar.client import PulsarClient
    from weir.runtime.interfaces import Runtime


DEFAULT_URL = "http://127.0.0.1:8080"
#: The process that serves a data folder keeps this file while it runs.
LISTENING_FILE = "listening.json"
#: Data folders of `weir up` and `weir cluster up`, relative to the current folder.
_FOLDERS = ("weir-data", "weir-cluster")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_NAME_ANOTHER = "start it with `weir up`, or name another server with --url or WEIR_URL"


class NoFolderServerError(ConnectFailedError):
    """A data folder exists, but no process serves it."""

    hint = _NAME_ANOTHER


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address. `folder`: the data folder that it must serve, confirmed by `instance`; None for a named
    or default address."""

    url: str
    folder: str | None = None
    instance: str = ""


def find_server(given: str | None) -> Server:
    """The named server; else the one of `WEIR_DATA`, `./weir-data` or `./weir-cluster`; else the default address.
    NoFolderServerError if such a folder exists and no live process serves it."""
    if given:
        return Server(given)
    named = os.environ.get("WEIR_DATA")
    folder = Path(named) if named else next(filter(_is_there, map(Path, _FOLDERS)), None)
    if folder is None:
        return Server(DEFAULT_URL)
    addresses = addresses_of_folder(folder)
    if not addresses:
        raise NoFolderServerError(_why_none(folder))
    url = http_url(addresses)
    if url is None:
        raise ConfigError(
            f"the server of {folder} has no HTTP listener", hint="name its address with --url or WEIR_URL"
        )
    return Server(url, str(folder), str(addresses.get("instance", "")))


def _is_there(folder: Path) -> bool:
    """True also for a dangling link, as to a disk that is not mounted, and for an unreadable folder."""
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _why_none(folder: Path) -> str:
    file = folder / LISTENING_FILE
    if os.path.islink(folder) and not os.path.exists(folder):
        return f"the data folder {folder} is a link to {os.readlink(folder)}, which does not exist"
    for name in _FOLDERS:
        if os.path.isdir(folder / name):
            return f"no server runs on the data folder {folder}: it is the folder above {folder / name}"
    try:
        file.read_bytes()
    except PermissionError:
        return f"the server of the data folder {folder} is unknown: {file} cannot be read"
    except OSError:
        pass
    return f"no server runs on the data folder {folder}"


def addresses_of_folder(data: Path) -> dict[str, Any]:
    """The addresses in `listening.json` by listener name; empty if its process has ended, or if the file is a copy
    from another folder."""
    try:
        found: Any = json.loads((data / LISTENING_FILE).read_text(encoding="utf-8"))
        process = int(found["pid"])
        same = found.get("folder") in (None, folder_id(data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return dict(found) if same and _lives(process) else {}


def folder_id(data: Path) -> str:
    """An id that distinguishes a folder from its copies."""
    found = data.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _lives(process: int) -> bool:
    """A killed process leaves its file behind."""
    try:
        os.kill(process, 0)
    except PermissionError:  # the process of another user
        return True
    except (OSError, OverflowError):
        return False
    return process > 0


def http_url(addresses: dict[str, Any]) -> str | None:
    """The URL of the admin REST among listener addresses by name."""
    for scheme in ("http", "https"):
        address = addresses.get(scheme)
        if address:
            host, _, port = str(address).rpartition(":")
            return f"{scheme}://{_EVERYWHERE.get(host, host)}:{port}"
    return None


T = TypeVar("T")

#: How long a command waits for a server.
_PATIENCE_S = 10.0
_PAUSE_S = 0.1
_MISSING_TOPIC = re.compile(r"there is no topic (\S+)")
#: How long a listening server has to answer, also at the end of the wait.
_LEAST_ANSWER_S = 5.0


@dataclass(slots=True)
class Remote:
    """A server and the credentials for it. The server is located on first use: a command that needs none locates
    none."""

    #: The named URL; None: the server of the data folder, or the default.
    given: str | None
    token: str | None
    ca: str | None
    certificate: str | None
    key: str | None
    #: Whether the command changes something: it then prints the server's address, unless it serves the folder.
    changes: bool = False
    #: Whether the command waits for a server that does not answer yet.
    patient: bool = False
    _server: Server | None = None
    _announced: bool = False

    @property
    def url(self) -> str:
        """The server's URL. Do not call it in an event loop: it may wait for the server of the data folder."""
        return self.server().url

    def server(self) -> Server:
        """The server, after it has confirmed that it serves the data folder."""
        if self._server is None:
            self._server = self._located()
        if self.changes:
            self.announce()
        return self._server

    def announce(self) -> None:
        """Print the server's address, once, unless it serves the data folder."""
        if self._announced or self.server_known().folder is not None:
            return
        self._announced = True
        context = click.get_current_context(silent=True)
        if context is None or not context.find_root().params.get("quiet"):
            click.echo(f"server: {self.server_known().url}", err=True)

    def server_known(self) -> Server:
        check(self._server is not None, "the server must be located before use")
        return cast(Server, self._server)

    def admin(self, work: "Callable[[AdminClient], Coroutine[Any, Any, T]]", *, reads: bool = False) -> T:
        """Run `work` with an admin REST client. A request other than GET counts as a change and prints the
        server's address, unless `reads` states that it changes nothing."""

        from weir.client.access import parse_url
        from weir.client.admin import AdminClient

        url = self.url
        settings = self.settings(parse_url(url))
        if not reads:
            settings = replace(settings, before_change=self.announce)

        async def main(runtime: "Runtime") -> T:
            async with AdminClient(runtime, url, settings) as client:
                return await work(client)

        return self._run(main)

    def broker(self, topic: str, work: "Callable[[Runtime, PulsarClient], Coroutine[Any, Any, T]]") -> T:
        """Run `work` with a client of the broker that owns the topic, found by the admin REST if needed."""

        from weir.client.access import parse_url
        from weir.client.admin import AdminClient
        from weir.client.pulsar.client import PulsarClient
        from weir.model.topics import TopicName

        server = self.url

        async def main(runtime: "Runtime") -> T:
            url = parse_url(server)
            settings = self.settings(url)
            where = str(url)
            if url.http:
                async with AdminClient(runtime, server, settings) as admin:
                    where = await admin.broker_url(TopicName.parse(topic), secure=url.secure)
            async with PulsarClient(runtime, where, settings) as client:
                return await work(runtime, client)

        return self._run(main)

    def reach(self) -> None:
        """ConnectFailedError if no server listens; checked before slow work starts."""
        from weir.client.access import parse_url

        url = parse_url(self.url)

        async def main(runtime: "Runtime") -> None:
            (await runtime.net.connect(url.host, url.port)).close()

        self._run(main)

    def _run(self, main: "Callable[[Runtime], Coroutine[Any, Any, T]]") -> T:
        """Run `main`; the error for an unreachable server names it and a remedy."""
        from weir.runtime.real import run

        try:
            return run(main)
        except ConnectFailedError as failure:
            raise self._unreached(failure) from None
        except TopicNotFoundError as missing:
            raise _with_remedy(missing) from None

    def _unreached(self, failure: ConnectFailedError) -> ConnectFailedError:
        if failure.hint != ConnectFailedError.hint:
            return failure
        url = self.given or DEFAULT_URL if self._server is None else self._server.url
        return ConnectFailedError(
            f"nothing answers at {url}: {failure.what}",
            hint="start it with `weir up`, or name another server with --url or WEIR_URL",
        )

    # --- which server -------------------------------------------------------------------------------------------

    def _located(self) -> Server:
        try:
            server = find_server(self.given)
        except NoFolderServerError:
            server = None
        if server is not None and server.folder is None and not self.patient:
            return server
        return self._run(self._locate)

    async def find_at_once(self, runtime: "Runtime") -> str:
        """The server's URL, without waiting: NoFolderServerError if the folder's server does not run."""
        self._server = find_server(self.given)
        if self._server.folder is not None:
            await self._answers(runtime, self._server, _LEAST_ANSWER_S)
        return self._server.url

    async def _locate(self, runtime: "Runtime") -> Server:
        """Wait for the server of the data folder and, if the command is patient, for any other server. Each
        attempt chooses the server again, because `weir up` may be creating the folder."""
        deadline = runtime.clock.monotonic() + _PATIENCE_S
        told = False
        while True:
            left_s = max(deadline - runtime.clock.monotonic(), _LEAST_ANSWER_S)
            try:
                server = find_server(self.given)
                await self._answers(runtime, server, left_s)
                return server
            except (TlsFailedError, TlsRefusedError):
                raise
            except (ConnectFailedError, ConnectionLostError) as failure:
                if runtime.clock.monotonic() >= deadline:
                    raise
                if not told:
                    told = True
                    click.echo(f"{failure.what}; waiting for the server, at most {_PATIENCE_S:g} s", err=True)
            await runtime.clock.sleep(_PAUSE_S)

    async def _answers(self, runtime: "Runtime", server: Server, timeout_s: float) -> None:
        """Check that the server answers, and serves the folder if there is one. The request carries no token."""
        from weir.client.access import parse_url
        from weir.client.admin import AdminClient

        url = parse_url(server.url)
        if not url.http:
            (await runtime.net.connect(url.host, url.port, timeout_s=timeout_s)).close()
            return
        settings = replace(
            self.settings(url), token=None, request_timeout_s=timeout_s, connect_timeout_s=timeout_s
        )
        try:
            async with AdminClient(runtime, server.url, settings) as admin:
                found = await admin.own("GET", "instance")
        except NetworkError as failure:
            if server.folder is None or isinstance(failure, TlsFailedError | TlsRefusedError):
                raise
            raise NoFolderServerError(
                f"the server of the data folder {server.folder} does not answer at {server.url}: {failure.what}"
            ) from None
        except WeirError as refused:
            if server.folder is None:
                if isinstance(refused, WireError):  # no HTTP
                    raise
                return  # another version, but it answers
            found = None
        if server.folder is not None and not _is(found, server.instance):
            raise NoFolderServerError(
                f"no server runs on the data folder {server.folder}: another server has the port of"
                f" {server.url}, which {LISTENING_FILE} names"
            )

    def settings(self, url: "ServerUrl | None" = None) -> "ClientSettings":
        """Client settings for this server, or for the one that the URL names."""
        from weir.client.access import ClientSettings, parse_url

        url = parse_url(self.server_known().url) if url is None else url
        return ClientSettings(offsets=True, token=self._token(), tls=self._tls() if url.secure else None)

    def access(self, patience_s: float = 60.0) -> "Access":
        """Access for blocking clients and other processes, with absolute paths. `patience_s`: how long the server
        may be unavailable. ConfigError for a missing file."""
        from weir.client.admin import Access

        whole = []
        for name, file in (("--ca", self.ca), ("--cert", self.certificate), ("--cert-key", self.key)):
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"file {file} does not exist", hint=f"check {name}")
            whole.append(None if file is None else os.path.abspath(file))
        ca, certificate, key = whole
        return Access(self.url, self.read_token(), ca, patience_s, certificate, key)

    def environment(self) -> dict[str, str]:
        """Environment variables that give a child process the same server and credentials."""
        given = {"WEIR_TOKEN": self.token} if self.token is not None else {}
        return {**os.environ, **given}

    def read_token(self) -> str | None:
        """The token itself, also if it is in a file."""
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

        from weir.client.access import trusting

        try:
            context = trusting(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise ConfigError(
                f"TLS files cannot be used: {failure}", hint="check --ca, --cert and --cert-key"
            ) from None
        return context


def _with_remedy(missing: TopicNotFoundError) -> TopicNotFoundError:
    """The same error with a hint that creates the topic."""
    what = missing.what.partition(" (create it")[0]
    found = _MISSING_TOPIC.fullmatch(what)
    if found is None:
        return missing
    name = short_topic(found[1])
    return TopicNotFoundError(f"there is no topic {name}", hint=f"create it with: weir topics create {name}")


#: The environment variable of each option.
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
        help="The server; by default the one that runs in ./weir-data or ./weir-cluster, else"
        f" {DEFAULT_URL}. [env: WEIR_URL]",
    ),
    click.option(
        "--token",
        envvar="WEIR_TOKEN",
        metavar="TOKEN",
        help="Your token, or file:/path. [env: WEIR_TOKEN]",
    ),
    click.option(
        "--token-file",
        envvar="WEIR_TOKEN_FILE",
        metavar="FILE",
        help="A file with the token. [env: WEIR_TOKEN_FILE]",
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
            help="Output format; by default a table that fits the terminal.",
        ),
        click.option("--json", "json_flag", is_flag=True, help="Short for -o json."),
    )


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `-o` and `--json`, as an `out: Output`; or as `as_json: bool` for a command that reports a
    change and has no table."""
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


Command = Callable[..., Any]


@overload
def remote_options(command: Command, /) -> Command: ...


@overload
def remote_options(*, changes: bool = False, patient: bool = False) -> Callable[[Command], Command]: ...


def remote_options(
    command: Command | None = None, /, *, changes: bool = False, patient: bool = False
) -> Command | Callable[[Command], Command]:
    """Give a command the server options, as one `remote` argument, and the output options. `changes`, `patient`:
    see Remote; Remote.admin detects changes without a declaration."""
    if command is None:
        return lambda inner: _with_remote(inner, changes=changes, patient=patient)
    return _with_remote(command, changes=changes, patient=patient)


def _with_remote(command: Command, *, changes: bool, patient: bool) -> Command:
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
        remote = Remote(url, chosen, ca, certificate, cert_key, changes=changes, patient=patient)
        return command(*args, remote=remote, **rest)

    folded.changes = changes  # type: ignore[attr-defined]
    options: Command = output_options(folded)
    for option in reversed(_OPTIONS):
        options = option(options)
    return options


def choose_token(token: str | None, token_file: str | None) -> str | None:
    """The command line takes precedence over the environment."""
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


def _is(found: Any, instance: str) -> bool:
    """Whether the server's answer confirms the instance. The file of an older Weir names none."""
    return bool(instance) and isinstance(found, dict) and found.get("instance") == instance

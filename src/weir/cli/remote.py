"""Options that say which server a command talks to and as whom, and the clients made from them.

The clients are imported when they are made: `weir sql`, which talks to a server of its own, answers sooner.

Which server a command talks to: the named one, that of the data folder at hand, or the default address.

A command must never talk to another server by accident. Where a data folder is at hand, only the process that
serves that folder is its server: `listening.json` names its process, its folder and a random id of its start
(`instance`), which the server confirms before anything else is sent to it.
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
#: Written by the process that serves a data folder, for as long as it does.
LISTENING_FILE = "listening.json"
#: Of `weir up` and `weir cluster up`, where commands are called.
_FOLDERS = ("weir-data", "weir-cluster")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_NAME_ANOTHER = "start it with `weir up`, or name another server with --url or WEIR_URL"


class NoFolderServerError(ConnectFailedError):
    """A data folder is at hand, and no process serves it."""

    hint = _NAME_ANOTHER


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address. `folder`: the data folder at hand that it must serve, as `instance` confirms; None if
    the address was named, or is the default."""

    url: str
    folder: str | None = None
    instance: str = ""


def find_server(given: str | None) -> Server:
    """The named one; else the server of `WEIR_DATA`, `./weir-data` or `./weir-cluster`; without such a folder, the
    default address. NoFolderServerError if there is a folder and no live process serves it."""
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
    """Also a link that leads nowhere, as to a disk that is not mounted, and a folder that cannot be read."""
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
    """What `listening.json` says, every listener by its name; empty if its process has ended, or served another
    folder from which the file was copied."""
    try:
        found: Any = json.loads((data / LISTENING_FILE).read_text(encoding="utf-8"))
        process = int(found["pid"])
        same = found.get("folder") in (None, folder_id(data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return dict(found) if same and _lives(process) else {}


def folder_id(data: Path) -> str:
    """Tells a folder from copies of it."""
    found = data.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _lives(process: int) -> bool:
    """A process that was killed leaves its file behind."""
    try:
        os.kill(process, 0)
    except PermissionError:  # of another user
        return True
    except (OSError, OverflowError):
        return False
    return process > 0


def http_url(addresses: dict[str, Any]) -> str | None:
    """The URL of the admin REST among addresses by the names of their listeners."""
    for scheme in ("http", "https"):
        address = addresses.get(scheme)
        if address:
            host, _, port = str(address).rpartition(":")
            return f"{scheme}://{_EVERYWHERE.get(host, host)}:{port}"
    return None


T = TypeVar("T")

#: How long a server is waited for.
_PATIENCE_S = 10.0
_PAUSE_S = 0.1
_MISSING_TOPIC = re.compile(r"there is no topic (\S+)")
#: A server that listens has so long to answer, also at the end of the patience.
_LEAST_ANSWER_S = 5.0


@dataclass(slots=True)
class Remote:
    """A server, and how to come in. Which server it is, is decided when it is first needed: a command that needs
    none looks for none."""

    #: The URL that was named; None: that of the data folder at hand, or the default.
    given: str | None
    token: str | None
    ca: str | None
    certificate: str | None
    key: str | None
    #: Whether the command changes something: then it prints the address of a server that is not the folder's own.
    changes: bool = False
    #: Whether the command waits for a server that does not answer yet.
    patient: bool = False
    _server: Server | None = None
    _announced: bool = False

    @property
    def url(self) -> str:
        """The server's URL. Not within an event loop: it may wait for the server of the data folder at hand."""
        return self.server().url

    def server(self) -> Server:
        """The server, once the one of a data folder has confirmed that it serves it."""
        if self._server is None:
            self._server = self._located()
        if self.changes:
            self.announce()
        return self._server

    def announce(self) -> None:
        """Print the server's address, once, unless it is the server of the data folder at hand."""
        if self._announced or self.server_known().folder is not None:
            return
        self._announced = True
        context = click.get_current_context(silent=True)
        if context is None or not context.find_root().params.get("quiet"):
            click.echo(f"server: {self.server_known().url}", err=True)

    def server_known(self) -> Server:
        check(self._server is not None, "the server is located before it is used")
        return cast(Server, self._server)

    def admin(self, work: "Callable[[AdminClient], Coroutine[Any, Any, T]]", *, reads: bool = False) -> T:
        """Run `work` with a client of the admin REST. A request that is not a GET is taken for a change, whose
        server is printed, unless `reads` says that it changes nothing."""

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
        """Run `work` with a client of the broker that serves the topic, which the admin REST finds if need be."""

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
        """ConnectFailedError if nothing listens there: said before something slow is started for it."""
        from weir.client.access import parse_url

        url = parse_url(self.url)

        async def main(runtime: "Runtime") -> None:
            (await runtime.net.connect(url.host, url.port)).close()

        self._run(main)

    def _run(self, main: "Callable[[Runtime], Coroutine[Any, Any, T]]") -> T:
        """A server that is not there is named, with what can be done about it."""
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
        """The server's URL, without waiting for a server: NoFolderServerError if the folder's does not run."""
        self._server = find_server(self.given)
        if self._server.folder is not None:
            await self._answers(runtime, self._server, _LEAST_ANSWER_S)
        return self._server.url

    async def _locate(self, runtime: "Runtime") -> Server:
        """Wait for the server of the data folder; where the command is patient, for any other server, too. Which
        one it is, is asked anew each time: `weir up` may just make the folder."""
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
        """Returns if the server answers, and is that of the folder where there is one. The token is not sent."""
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
                return  # of another version; it answers
            found = None
        if server.folder is not None and not _is(found, server.instance):
            raise NoFolderServerError(
                f"no server runs on the data folder {server.folder}: another server has the port of"
                f" {server.url}, which {LISTENING_FILE} names"
            )

    def settings(self, url: "ServerUrl | None" = None) -> "ClientSettings":
        """How to come in to this server, or to the one that it names."""
        from weir.client.access import ClientSettings, parse_url

        url = parse_url(self.server_known().url) if url is None else url
        return ClientSettings(offsets=True, token=self._token(), tls=self._tls() if url.secure else None)

    def access(self, patience_s: float = 60.0) -> "Access":
        """For blocking clients and for other processes: paths are whole. `patience_s`: how long the server may be
        away. ConfigError if a file is not there."""
        from weir.client.admin import Access

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
    """The same error with the command that creates the topic."""
    what = missing.what.partition(" (create it")[0]
    found = _MISSING_TOPIC.fullmatch(what)
    if found is None:
        return missing
    name = short_topic(found[1])
    return TopicNotFoundError(f"there is no topic {name}", hint=f"create it with: weir topics create {name}")


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
        help="The server; by default the one that runs in ./weir-data or ./weir-cluster, else"
        f" {DEFAULT_URL}. [env: WEIR_URL]",
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


Command = Callable[..., Any]


@overload
def remote_options(command: Command, /) -> Command: ...


@overload
def remote_options(*, changes: bool = False, patient: bool = False) -> Callable[[Command], Command]: ...


def remote_options(
    command: Command | None = None, /, *, changes: bool = False, patient: bool = False
) -> Command | Callable[[Command], Command]:
    """Give a command the options of a server, folded into one `remote` argument, and those of its answer.
    `changes`, `patient`: see Remote; changes that are made by Remote.admin are noticed without being declared."""
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


def _is(found: Any, instance: str) -> bool:
    """Whether the server's answer confirms the instance. A file of an older Weir names none."""
    return bool(instance) and isinstance(found, dict) and found.get("instance") == instance

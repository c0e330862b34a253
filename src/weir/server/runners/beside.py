"""A runner beside a broker: a process of `weir up` that is kept alive, and ends before the node."""

import os
from collections.abc import Awaitable, Callable

from weir.broker.access.tokens import create_token, load_secret, read_key
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.config.tree import Config, RunnerConfig
from weir.server.supervisor import Child, ChildSpec
from weir.server.up import Served

_LOOPBACK = "127.0.0.1"


class WithRunner:
    """A node, and a runner. `spec`: what is run, told where the node listens; `check`: raises if it cannot be run,
    before the node starts."""

    def __init__(
        self,
        node: Served,
        runtime: Runtime,
        spec: Callable[[dict[str, Address]], Awaitable[ChildSpec]],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._spec = spec
        self._check = check
        #: Once it is started.
        self.child: Child | None = None

    @property
    def addresses(self) -> dict[str, Address]:
        return self._node.addresses

    async def start(self) -> None:
        """The runner is not waited for: it says itself, in the same log, how it goes."""
        self._check()
        await self._node.start()
        try:
            self.child = Child(await self._spec(self._node.addresses), self._runtime.clock, lambda: None, _died)
            await self.child.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """The runner goes first: it finishes what it has while there is somebody to take it, and lets go of its
        lease where it is kept."""
        if self.child is not None:
            await self.child.stop()
        await self._node.close()

    async def failed(self) -> None:
        await self._node.failed()


async def _died(name: str) -> None:
    """Nobody else has to know: its lease runs out by itself, and its workers are fenced by the next."""


async def runner_token(
    config: Config, given: RunnerConfig, runtime: Runtime, *, runs: str, section: str
) -> str | None:
    """As it was given; or one that is made here, where the secret is at hand; none where there is a certificate.
    `runs`: what it runs, as words; `section`: of its settings."""
    auth = config.auth
    if given.token:
        return given.token
    if (
        not auth.authenticate
        or given.certificate
        or "WEIR_TOKEN" in os.environ
        or "WEIR_CERTIFICATE" in os.environ
    ):
        return None
    if not auth.token_secret or not auth.superusers or auth.role_claim != "sub":
        raise ConfigError(
            f"the runner of the {runs} needs a token of a superuser",
            hint=f"set {section}.token=file:/path, made by weir token create, or {section}.certificate",
        )
    secret = load_secret(await read_key(auth.token_secret, runtime.disk)).key
    return create_token(secret, auth.superusers[0], audience=auth.audience or None)


def url_from_here(addresses: dict[str, Address], *, runs: str, section: str) -> str:
    """Where the runner reaches the node; ConfigError if it cannot."""
    scheme = next((one for one in ("http", "https") if one in addresses), None)
    if scheme is None:
        raise ConfigError(f"the runner of the {runs} needs listeners.http", hint=f"set it, or {section}.url")
    address = addresses[scheme]
    host = _LOOPBACK if address.host in ("", "0.0.0.0", "::") else address.host
    return f"{scheme}://{Address(host, address.port)}"


def tls_words(given: RunnerConfig) -> list[str]:
    """Its files, for the command line."""
    named = (("--ca", given.ca), ("--cert", given.certificate), ("--cert-key", given.key))
    return [word for name, file in named if file for word in (name, file)]


def token_environment(token: str | None) -> dict[str, str]:
    """The token goes by the environment: a command line can be seen by everybody on the machine."""
    return {} if token is None else {"WEIR_TOKEN": token}

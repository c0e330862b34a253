"""How another Pulsar cluster, or another Weir, is reached: with Pulsar's own client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weir.connect.secrets import reveal
from weir.connect.task import Job
from weir.model.errors import ConfigError, ConnectorError
from weir.model.installation import install_command

_TIMEOUT_S = 30


@contextmanager
def one_sentence(job: Job) -> Iterator[None]:
    """Errors of Pulsar's client, which say little, as one of Weir's."""
    try:
        yield
    except Exception as failure:
        if type(failure).__module__.partition(".")[0] not in ("pulsar", "_pulsar"):
            raise
        said = f"{job.option('service_url')}: {failure}"
        raise ConnectorError(said, hint="check that the address is right and that the server runs") from failure


def other_pulsar(job: Job) -> Any:
    try:
        import pulsar
    except ImportError:
        raise ConfigError(
            "Pulsar needs its client", hint=f"install it with {install_command('connect')}"
        ) from None
    token = reveal(job.option("token"))
    more = {} if job.option("ca") is None else {"tls_trust_certs_file_path": job.option("ca")}
    return pulsar.Client(
        job.option("service_url"),
        authentication=None if token is None else pulsar.AuthenticationToken(token),
        operation_timeout_seconds=_TIMEOUT_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        **more,
    )

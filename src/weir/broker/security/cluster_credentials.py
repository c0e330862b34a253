"""What a node shows the others of its cluster: the cluster's secret, a certificate of its authority, or both."""

import ssl
from dataclasses import dataclass
from functools import partial

from weir.broker.peers.peer_calls import PeerCredentials
from weir.broker.security.tokens import read_key
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Disk
from weir.runtime.real_tls import FileContext, TlsFiles
from weir.wire.node.proof import ClusterSecret


@dataclass(frozen=True, slots=True)
class ClusterCredentialSettings:
    """Where they are: `secret` as keys are configured (base64:..., file:/path), the others as files in PEM."""

    secret: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""


async def load_credentials(disk: Disk, settings: ClusterCredentialSettings) -> PeerCredentials:
    """Both kinds, if both are configured; neither, if none is. ConfigError if one cannot be used."""
    secret = await load_cluster_secret(disk, settings.secret) if settings.secret else None
    if not (settings.certificate or settings.key or settings.authority):
        return PeerCredentials(secret)
    return PeerCredentials(secret, _context(settings, server=True), _context(settings, server=False))


async def load_cluster_secret(disk: Disk, source: str) -> ClusterSecret:
    """The line end behind a secret in a file is nobody's secret."""
    return ClusterSecret((await read_key(source, disk)).rstrip(b"\r\n"))


def check_known(credentials: PeerCredentials) -> PeerCredentials:
    """ConfigError unless a stranger can be told from a node of the cluster."""
    if credentials.secret is None and credentials.server_tls is None:
        raise ConfigError(
            "brokers that listen to each other need credentials of the cluster",
            hint="set cluster.secret, or cluster.certificate, cluster.key and cluster.authority",
        )
    return credentials


def _context(settings: ClusterCredentialSettings, *, server: bool) -> ssl.SSLContext:
    """Both sides show a certificate and ask for one. Who has one of the cluster's authority belongs to it,
    whatever the name in it: nodes find each other by address."""
    if not (settings.certificate and settings.key and settings.authority):
        raise ConfigError(
            "certificates between nodes need all three of certificate, key and authority",
            hint="set cluster.certificate, cluster.key and cluster.authority",
        )
    names = ("cluster.certificate", "cluster.key", "cluster.authority")
    files = TlsFiles(settings.certificate, settings.key, settings.authority, names)
    protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    return FileContext(protocol, files, partial(_filled, protocol))


def _filled(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    return context

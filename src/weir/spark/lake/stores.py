"""Catalogs and stores of tables, opened as their definitions say; secrets come from the environment.

Nothing here asks the network for what was not named: an S3 client that is not told its region would ask for it.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from weir.model.errors import LakeError
from weir.model.installation import install_command
from weir.spark.lake.definitions import Definition
from weir.spark.lake.failures import in_a_line

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

T = TypeVar("T")

#: Properties by which pyiceberg imports a class, and those by which it calls others' code.
_CLASSES = ("py-io-impl", "write.py-location-provider.impl")
_CALLABLES = ("s3.retry-strategy-impl", "s3.signer")

#: pyiceberg's names, and the variables of AWS' own tools, the first that is set.
_FROM_ENVIRONMENT = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
}
#: What every S3-compatible server takes.
_REGION = "us-east-1"
_CATALOG_NAME = "weir"
_POSTGRESQL = "postgresql://"
#: How long a writer waits for another one's lock on SQLite's file.
_SQLITE_PATIENCE_S = 60
#: How long a read waits for a store that is away, and how often it asks again. Shorter than the minute after which
#: Hadoop's client no longer waits for the gateway's answer.
STORE_PATIENCE_S, _STORE_PAUSE_S = 30.0, 0.5
#: What Arrow says of a store that cannot answer now, and may again.
_AWAY = (
    "NETWORK_CONNECTION",
    "SERVICE_UNAVAILABLE",
    "INTERNAL_FAILURE",
    "REQUEST_TIMEOUT",
    "SLOW_DOWN",
    "curlCode",
)


def store_options(definition: Definition) -> dict[str, str]:
    """What a process needs to reach the store: as defined, and by the environment. Travels to tasks."""
    found = {}
    if definition.to.startswith("s3"):
        for name, variables in _FROM_ENVIRONMENT.items():
            said = next((os.environ[one] for one in variables if os.environ.get(one)), None)
            if said is not None:
                found[name] = said
        found.setdefault("s3.region", _REGION)
    return found | dict(definition.options)


def suit_store(options: Mapping[str, str]) -> None:
    """Before a process writes to the store. Servers that are not Amazon's may not know the checksums that its
    client sends behind each upload unless told otherwise: some refuse them, others keep them as a part of the
    file."""
    if "s3.endpoint" in options:
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")


class PatientReads:
    """Reads of one store: if it is away, they are tried again a moment later, all of them for so long together."""

    def __init__(
        self,
        where: str,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._where = where
        self._now = now
        self._sleep = sleep
        self._away_since: float | None = None

    def __call__(self, read: Callable[[], T]) -> T:
        """LakeError if the store does not come back."""
        while True:
            try:
                found = read()
            except OSError as failure:
                if not any(word in str(failure) for word in _AWAY):
                    raise
                if self._away_since is None:
                    self._away_since = self._now()
                if self._now() - self._away_since >= STORE_PATIENCE_S:
                    raise self.trouble() or failure from failure
            else:
                self._away_since = None
                return found
            self._sleep(_STORE_PAUSE_S)

    def trouble(self) -> LakeError | None:
        """What is wrong with the store, if it did not answer last."""
        if self._away_since is None:
            return None
        return LakeError(f"the store of the lake, {self._where}, does not answer", hint="start it, and try again")


def folder_in(io: Any, location: str) -> tuple[Any, str]:
    """Arrow's file system of a place, and its path there."""
    scheme, host, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, host), path


def open_catalog(definition: Definition) -> "Catalog":
    """LakeError says what to install or to mend, or what this process must not open."""
    definition.check()
    options = store_options(definition)
    suit_store(options)
    return _opened(definition.catalog, definition.to, tuple(sorted(options.items())))


@lru_cache(maxsize=1)
def refuse_foreign_classes() -> None:
    """pyiceberg imports classes that properties of a table name (`py-io-impl` and others): a writer of the catalog
    would choose what runs in the process that reads the table. LakeError for all but pyiceberg's own."""
    import pyiceberg.io
    import pyiceberg.table.locations

    modules: Mapping[Any, str] = {
        pyiceberg.io: "_import_file_io",
        pyiceberg.table.locations: "_import_location_provider",
    }
    for module, name in modules.items():
        setattr(module, name, _own_classes_only(getattr(module, name)))


def _own_classes_only(load: Callable[..., T]) -> Callable[..., T]:
    def checked(name: str, *rest: Any) -> T:
        properties: Mapping[str, str] = rest[-1]
        classes = [name, *(properties[one] for one in _CLASSES if one in properties)]
        foreign = [one for one in classes if not str(one).startswith("pyiceberg.")]
        foreign += [f"{one}={properties[one]}" for one in _CALLABLES if properties.get(one)]
        if foreign:
            raise LakeError(
                f"a table of the lake names the class {str(foreign[0])[:100]!r}, which is not pyiceberg's own",
                hint="remove the property from the table; find out who wrote it",
            )
        return load(name, *rest)

    return checked


@lru_cache(maxsize=64)
def _opened(address: str, warehouse: str, options: tuple[tuple[str, str], ...]) -> "Catalog":
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as missing:
        raise LakeError(
            f"the lake needs pyiceberg, and {missing.name} is not installed",
            hint=f"install it with {install_command('lake')}",
        ) from None
    refuse_foreign_classes()
    found: Mapping[str, str | None]
    if address.startswith("http"):
        found = {"type": "rest", "uri": address}
    else:
        found = {"type": "sql", "uri": _sql(address)}
    try:
        return load_catalog(_CATALOG_NAME, **{**found, "warehouse": warehouse, **dict(options)})
    except Exception as failure:
        raise LakeError(
            f"the lake's catalog {address} does not open: {in_a_line(failure)}",
            hint="check --catalog of weir lake on, and that it is there",
        ) from failure


def _sql(address: str) -> str:
    if address.startswith(_POSTGRESQL):  # by the driver that the extra installs
        return f"postgresql+psycopg://{address.removeprefix(_POSTGRESQL)}"
    if not address.startswith("sqlite:"):
        return address
    Path(urlsplit(address).path.removeprefix("/")).parent.mkdir(parents=True, exist_ok=True)
    return f"{address}?timeout={_SQLITE_PATIENCE_S}"

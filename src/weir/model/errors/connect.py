"""Connectors: definitions, and what goes wrong while they run."""

from weir.model.errors.base import WeirError


class ConnectorNotFoundError(WeirError):
    """There is no connector of this name."""

    hint = "weir connect list shows them"


class ConnectorExistsError(WeirError):
    """There is another connector of this name already."""

    hint = "remove it first, or choose another name"


class ConnectorError(WeirError):
    """A connector that cannot go on: what it carries, or the other system, does not allow it."""

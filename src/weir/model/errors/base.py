"""The root of the error tree, and what belongs to no layer."""


class WeirError(Exception):
    """Root of every error that Weir raises on purpose."""

    #: What the user can do, when the raiser has nothing more precise to say.
    hint: str = ""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


class InvariantError(WeirError):
    """A promise that the code makes to itself does not hold; a bug in Weir."""

    hint = "this is a bug in Weir; please report it with the log"


class ConfigError(WeirError):
    """A setting is unknown or wrong."""


class InvalidNameError(WeirError):
    """A name that cannot be a topic, namespace, tenant, subscription or producer."""


class BrokerError(WeirError):
    """The broker could not do what was asked."""


class NotFoundError(BrokerError):
    """The broker's answer is that there is no such thing."""

"""Who a client of Kafka's is, on a stage: the password is the role."""

from weir.broker.api.security import Identity
from weir.model.errors import NotAuthenticatedError


class PasswordRoles:
    """Who says nothing is nobody, unless everyone may do everything."""

    def __init__(self, *, open_to_all: bool) -> None:
        self._open = open_to_all

    def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        if not credentials and not self._open:
            raise NotAuthenticatedError("who are you?")
        return Identity(credentials.rpartition(b"\0")[2].decode() or "anyone")

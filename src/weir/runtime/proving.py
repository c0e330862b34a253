"""The side of a proof (`wire.proof`) that connects: nothing of the other side's is read before it is known."""

from weir.model.errors import NetworkError, WireError
from weir.runtime.interfaces import Connection
from weir.wire.frames import FrameSplitter
from weir.wire.proof import ProvingClient

_HINT = "have both the same cluster.secret?"


async def prove(connection: Connection, splitter: FrameSplitter, proving: ProvingClient) -> None:
    """Prove that this side knows the secret, and have the other prove it; whoever calls sets the time limit.
    NotAuthenticatedError, WireError or NetworkError, after which the connection is of no use."""
    connection.write([proving.begin()])
    while not proving.known:
        try:
            data = await connection.receive()
        except NetworkError as lost:
            raise NetworkError(f"it let go of us: {lost.what}", hint=_HINT) from lost
        if not data:
            raise NetworkError("it let go of us", hint=_HINT)
        for body in splitter.feed(data):
            if proving.known:
                raise WireError("more came than the proof")
            reply = proving.receive(body)
            if reply is not None:
                connection.write([reply])

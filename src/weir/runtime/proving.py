"""The side of a proof (`wire.proof`) that connects: nothing of the other side's is read before it is known."""

from weir.model.errors import NetworkError, WireError
from weir.runtime.interfaces import Connection
from weir.wire.frames import FrameSplitter
from weir.wire.proof import ProvingClient


async def prove(connection: Connection, splitter: FrameSplitter, proving: ProvingClient) -> None:
    """Prove that this side knows the secret, and have the other prove it; whoever calls sets the time limit.
    NotAuthenticatedError, WireError or NetworkError, after which the connection is of no use."""
    connection.write([proving.begin()])
    while not proving.known:
        data = await connection.receive()
        if not data:
            raise NetworkError("it hung up instead of a proof; does it have another cluster.secret?")
        for body in splitter.feed(data):
            if proving.known:
                raise WireError("more came than the proof")
            reply = proving.receive(body)
            if reply is not None:
                connection.write([reply])

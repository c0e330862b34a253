"""A process that runs a function for its worker: frames come by one pipe, and answers go by another.

It knows no broker and has no token. When its worker is gone, its pipe ends, and so does it.
"""

import os
import struct
import sys
from typing import BinaryIO

import msgspec

from weir.functions.executing import Calls
from weir.functions.protocol import Done, Ready, Setup, Work
from weir.functions.talk import Talk
from weir.model.errors import FunctionError

_SIZE = struct.Struct(">I")


def read_frame(pipe: BinaryIO) -> bytes | None:
    """None at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    size: int = _SIZE.unpack(head)[0]
    body = pipe.read(size)
    return body if len(body) == size else None


def write_frame(pipe: BinaryIO, body: bytes) -> None:
    pipe.write(_SIZE.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def main() -> None:
    # Frames have pipes of their own: what the function prints, or a library of it does, is none.
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    setup = _setup(incoming)
    talk = Talk()
    talk.listen(setup.log_level)
    try:
        calls = Calls(setup, talk)
    except FunctionError as wrong:
        write_frame(outgoing, msgspec.msgpack.encode(Ready(str(wrong.what), talk.take())))
        return
    write_frame(outgoing, msgspec.msgpack.encode(Ready(None, talk.take())))
    decoder, encoder = msgspec.msgpack.Decoder(Work), msgspec.msgpack.Encoder()
    while (frame := read_frame(incoming)) is not None:
        work = decoder.decode(frame)
        results, changed = calls.run(work.items, work.states)
        sys.stdout.flush()
        write_frame(outgoing, encoder.encode(Done(results, changed, talk.take())))


def _setup(incoming: BinaryIO) -> Setup:
    frame = read_frame(incoming)
    if frame is None:
        sys.exit(0)
    return msgspec.msgpack.decode(frame, type=Setup)


if __name__ == "__main__":
    main()

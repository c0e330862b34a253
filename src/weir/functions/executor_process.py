"""A process that runs a function for its worker: frames come by one pipe, and answers go by another.

It knows no broker and has no token. When its worker is gone, so is it, whatever the function is at.

A worker does not outlive its runner, nor a process that calls the function its worker.
"""

import ctypes
import os
import signal
import struct
import sys
import time
from typing import BinaryIO

import msgspec

from weir.functions.captured_output import Talk
from weir.functions.executor_protocol import Done, Ready, Setup, Work
from weir.functions.invocation import Calls
from weir.model.errors import FunctionError

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """This signal when whoever started the process is gone, and at once if that was gone before this."""
    if sys.platform == "linux":
        before = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != before:
            os.kill(os.getpid(), number)


_SIZE = struct.Struct(">I")
#: After this share of the time that a call may take, it is said that calls go on: whoever waits gives each call so
#: much more.
TOLD_AFTER = 0.1


def read_frame(pipe: BinaryIO) -> bytes | None:
    """None at the end. The pipe may be one without a buffer."""
    head = _exactly(pipe, _SIZE.size)
    return None if head is None else _exactly(pipe, _SIZE.unpack(head)[0])


def _exactly(pipe: BinaryIO, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        more = pipe.read(size)
        if not more:
            return None
        parts.append(more)
        size -= len(more)
    return b"".join(parts)


def write_frame(pipe: BinaryIO, body: bytes) -> None:
    pipe.write(_SIZE.pack(len(body)))
    pipe.write(body)
    pipe.flush()


class _GoingOn:
    """Empty frames between calls, where calls have a limit: not for each, which would cost more than most do."""

    def __init__(self, outgoing: BinaryIO, timeout_s: float) -> None:
        self._outgoing = outgoing
        self._every_s = timeout_s * TOLD_AFTER
        self._told = 0.0

    def begin(self) -> None:
        self._told = time.monotonic()

    def before_call(self) -> None:
        if self._every_s and time.monotonic() - self._told > self._every_s:
            write_frame(self._outgoing, b"")
            self.begin()


def main() -> None:
    end_with_parent(signal.SIGKILL)
    # Frames have pipes of their own: what the function prints, or a library of it does, is none.
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    setup = _setup(incoming)
    talk = Talk()
    talk.listen(setup.log_level)
    going_on = _GoingOn(outgoing, setup.timeout_s)
    try:
        calls = Calls(setup, talk, going_on.before_call)
    except FunctionError as wrong:
        write_frame(outgoing, msgspec.msgpack.encode(Ready(str(wrong.what), talk.take())))
        return
    write_frame(outgoing, msgspec.msgpack.encode(Ready(None, talk.take(), calls.batch)))
    decoder, encoder = msgspec.msgpack.Decoder(Work), msgspec.msgpack.Encoder()
    while (frame := read_frame(incoming)) is not None:
        work = decoder.decode(frame)
        going_on.begin()
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

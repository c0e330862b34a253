"""`python -m bench.micro_pulsar_produce [N [WINDOW]]`: what an unbatched send costs the broker in CPU time.

`weir up` as a process, and one raw connection that keeps 1,000 sends of 1 KiB under way, or as many as is said: an
official client would need more CPU than the broker, and CPU time is what a busy machine distorts least. With a
window of 1 each message has turns of the loop, a journal write and a receipt for itself.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from time import monotonic

from weir.testing.processes.up import UpProcess
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message

WINDOW = 1000
PAYLOAD = bytes(1024)


def cpu_s(pid: int, thread: int | None = None) -> float:
    """Of a process, or of one of its threads."""
    where = Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
    fields = where.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sends(count: int) -> list[bytes]:
    made = []
    for sequence in range(count):
        head = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1_700_000_000_000)
        command = api.CommandSend(producer_id=1, sequence_id=sequence, num_messages=1)
        made.append(b"".join(encode_with_message(command, seal_message(head, PAYLOAD))))
    return made


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = splitter()

    async def heard(self) -> int:
        """How many frames came."""
        return sum(1 for _ in self._splitter.feed(await self._reader.read(1 << 18)))

    async def ask(self, command: Message) -> None:
        self._writer.write(encode_command(command))
        await self.heard()

    async def produce(self, frames: list[bytes], window: int) -> None:
        sent = done = 0
        while done < len(frames):
            more = min(len(frames) - sent, window - (sent - done))
            if more:
                self._writer.write(b"".join(frames[sent : sent + more]))
                sent += more
            done += await self.heard()


async def measure(up: UpProcess, count: int, window: int = WINDOW) -> None:
    host, _, port = up.addresses["pulsar"].rpartition(":")
    connection = Connection(*await asyncio.open_connection(host, int(port)))
    await connection.ask(api.CommandConnect(client_version="bench", protocol_version=20))
    topic = "persistent://public/default/t"
    await connection.ask(api.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p"))
    frames = sends(count)
    await connection.produce(frames[: count // 5], window)
    frames = frames[count // 5 :]
    whole, loop, began = cpu_s(up.pid), cpu_s(up.pid, up.pid), monotonic()
    await connection.produce(frames, window)
    spent = monotonic() - began
    print(
        f"{(cpu_s(up.pid) - whole) / len(frames) * 1e6:.1f} us of CPU per message, "
        f"{(cpu_s(up.pid, up.pid) - loop) / len(frames) * 1e6:.1f} of them on the loop; "
        f"{len(frames) / spent:,.0f} messages/s"
    )


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix=".weir-bench-", dir=Path(__file__).parent.parent.parent))
    up = UpProcess(folder)
    try:
        up.start()
        asyncio.run(measure(up, *map(int, sys.argv[1:] or ("100000",))))
        up.stop()
    finally:
        up.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""One bookie as a process, for the benchmark: `python -m bench.node FOLDER ID SYNC` prints its port and serves."""

import asyncio
import sys

from bench.stores import bookie_settings
from weir.bookie.bookie import Bookie
from weir.bookie.server import BookieServer, ServerSettings
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run


async def main(runtime: Runtime) -> None:
    folder, bookie_id, sync = sys.argv[1:4]
    bookie = await Bookie.open(runtime, bookie_settings(folder, bookie_id, sync=sync))
    server = BookieServer(runtime, bookie, BookieId(bookie_id), ServerSettings())
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()  # until terminated: the data goes with the folder


if __name__ == "__main__":
    run(main)

"""What grows and what must not: cost per entry with many ledgers, start time with a long journal."""

import gc
import json
import os
import subprocess
import sys
import time

from bench.append import append_all, append_bursts, writers_of
from bench.case import Measured, Params, case
from bench.stores import Store, bookie_settings, on_store, rss_mb
from weir.bookie.bookie import Bookie
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.wire.entry import encode_entry

_LEDGERS = 100


@case("scale.ledgers")
def ledgers(params: Params, folder: str) -> Measured:
    """CPU per entry with so many open ledgers that all hold an entry already: in bursts, or (burst 0) round-robin.
    With the flush of what was appended to the entry logs."""
    payload, count, burst = os.urandom(params["size"]), params["count"], params["burst"]

    async def measure(store: Store) -> Measured:
        assert store.local is not None
        started = time.perf_counter()
        writers = await writers_of(store, params["ledgers"])
        await append_all(writers, payload, len(writers))
        await store.local.flush()
        made = (time.perf_counter() - started) / len(writers)
        gc.collect()
        cpu, started = store.cpu_s(), time.perf_counter()
        if burst:
            await append_bursts(writers, payload, count, burst)
        else:
            await append_all(writers, payload, count)
        seconds = time.perf_counter() - started
        await store.local.flush()
        return {
            "cpu_us": (store.cpu_s() - cpu) / count * 1e6,
            "entries_s": count / seconds,
            "ledger_us": made * 1e6,
            "rss_mb": rss_mb(),
        }

    return on_store(params, folder, measure)


@case("scale.fill")
def fill(params: Params, folder: str) -> Measured:
    """Fill a journal and die without a flush."""
    payload, count = os.urandom(params["size"]), params["count"]

    async def main(runtime: Runtime) -> None:
        settings = bookie_settings(folder, "b0", sync="periodic", keep_in_journal=True)
        bookie = await Bookie.open(runtime, settings)
        for first in range(0, count, 1000):
            ledger = LedgerId(1 + first // 1000 % _LEDGERS)
            base = first // 1000 // _LEDGERS * 1000
            ids = range(base, base + 1000)
            await bookie.add(ledger, [(EntryId(i), encode_entry(ledger, i, i - 1, i, payload)) for i in ids])

    run(main)
    print("{}", flush=True)
    os._exit(0)


@case("scale.start")
def start(params: Params, folder: str) -> Measured:
    """How long a bookie that died takes to open, with everything in its journal."""
    command = [sys.executable, "-m", "bench.case", "scale.fill", json.dumps(params), folder]
    subprocess.run(command, check=True, capture_output=True)

    async def main(runtime: Runtime) -> Measured:
        before = rss_mb()
        settings = bookie_settings(folder, "b0", sync="always", keep_in_journal=True)
        started = time.perf_counter()
        bookie = await Bookie.open(runtime, settings)
        seconds = time.perf_counter() - started
        measured = {"seconds": seconds, "entries_s": params["count"] / seconds, "rss_mb": rss_mb() - before}
        await bookie.close()
        return measured

    return run(main)

"""A broker as its test sees it: where it is, its clock, what is in it, and its ends and beginnings.

The same helpers for tests that are coroutines: none of them holds up the test's event loop.

The clock of a test's broker.

Durations as people write them.

The next test's broker: started while this test runs, so that the next one need not wait for it.
"""

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from weir.pytest_plugin.messages import (
    BrokerFailedError,
    Message,
    NotYetError,
    message_from,
    message_to,
    moment_of,
)
from weir.pytest_plugin.processes import BrokerProcesses

_UNITS_S = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86_400.0,
    "day": 86_400.0,
    "w": 604_800.0,
    "week": 604_800.0,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?(?:\s*and\s)?", re.IGNORECASE)

Duration = str | int | float | timedelta


def seconds_of(duration: Duration) -> float:
    """Of "3 days", "1h 30min", a timedelta, or seconds; ValueError for anything else, and for what is negative."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _parsed(duration)
    else:
        seconds = float(duration)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{duration!r} is no duration: a clock goes forward only")
    return seconds


def _parsed(text: str) -> float:
    at, seconds = 0, 0.0
    while at < len(text):
        found = _PART.match(text, at)
        unit = (
            None if found is None else _UNITS_S.get(found[2].lower(), _UNITS_S.get(found[2].lower().rstrip("s")))
        )
        if found is None or unit is None:
            raise ValueError(f"{text!r} is no duration: write it as '3 days', '1h 30min' or '250 ms'")
        seconds += float(found[1]) * unit
        at = found.end()
    if not text.strip():
        raise ValueError("an empty text is no duration")
    return seconds


class AsyncHelpers:
    """Each does what `WeirBroker` does under the same name, on a thread."""

    def __init__(self, broker: "WeirBroker") -> None:
        self._broker = broker

    async def advance(self, duration: Duration, *, silent_clients: bool = False) -> datetime:
        """`clock.advance`."""
        return await asyncio.to_thread(self._broker.clock.advance, duration, silent_clients=silent_clients)

    async def produce(
        self,
        topic: str,
        *values: object,
        key: bytes | str | None = None,
        headers: Mapping[str, object] | None = None,
        partition: int | None = None,
        delay: Duration = 0,
    ) -> None:
        await asyncio.to_thread(
            self._broker.produce, topic, *values, key=key, headers=headers, partition=partition, delay=delay
        )

    async def messages(self, topic: str) -> list[Message]:
        return await asyncio.to_thread(self._broker.messages, topic)

    async def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: Duration = 10,
        *,
        where: Callable[[Message], bool] | None = None,
    ) -> list[Message]:
        return await asyncio.to_thread(self._broker.wait_for, topic, count, timeout, where=where)

    async def wait_until_empty(self, topic: str, subscription: str | None = None, timeout: Duration = 10) -> None:
        await asyncio.to_thread(self._broker.wait_until_empty, topic, subscription, timeout)

    async def backlogs(self, topic: str, subscription: str | None = None) -> dict[str, int]:
        return await asyncio.to_thread(self._broker.backlogs, topic, subscription)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._broker.topics)

    async def start(self) -> None:
        await asyncio.to_thread(self._broker.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._broker.stop)

    async def kill(self) -> None:
        await asyncio.to_thread(self._broker.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._broker.restart)


Ask = Callable[..., Any]


class BrokerClock:
    """It runs as all clocks do, and can be moved forward. Message delays, times to live, retention, transactions,
    expiry of queues, subscriptions and tokens go by it; whether clients are alive does not, unless you say so."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        #: What it was moved by, in seconds, of which clients' silence so much: a restarted broker goes on so.
        self.ahead_s = self.silent_s = 0.0

    def now(self) -> datetime:
        """What the broker's clock says, in UTC."""
        return self._note(self._ask("now"))

    @property
    def ahead(self) -> timedelta:
        """How far it is before the clock of this process."""
        return timedelta(seconds=self.ahead_s + self.silent_s)

    def advance(self, duration: Duration, *, silent_clients: bool = False) -> datetime:
        """Be later: by "3 days", "1h 30min", a timedelta, or seconds. When this returns, all that became due has
        been done, in its order, each thing at its time; what is for clients is on its way to them.
        `silent_clients`: as if every client had been silent for so long: sessions of groups end, connections that
        missed heartbeats are closed. Answers what the clock says now."""
        return self._note(self._ask("advance", seconds=seconds_of(duration), silent_clients=silent_clients))

    def set(self, moment: datetime) -> datetime:
        """Be at this moment (local time, if it has no time zone); ValueError if that is past."""
        behind = moment.astimezone(UTC) - self.now()
        if behind < timedelta(0):
            raise ValueError(f"{moment} is past for the broker: a clock goes forward only")
        return self.advance(behind)

    def _note(self, told: Mapping[str, float]) -> datetime:
        self.ahead_s, self.silent_s = told["ahead_s"], told["silent_s"]
        return moment_of(told["wall_ms"])


_LOOPBACK = "127.0.0.1"
#: What it listens on, unless the settings say something else.
_LISTENERS = ("kafka", "pulsar", "amqp", "rocketmq", "http")
_LOG_BYTES = 64 * 1024
#: Past what was to be waited for, before the broker counts as dead.
_GRACE_S = 30.0


class WeirBroker:
    """A whole Weir of this test alone, in a process of its own. Made by the fixtures."""

    def __init__(self, processes: BrokerProcesses, config: Mapping[str, Any]) -> None:
        self._processes = processes
        #: Its settings, by their full names.
        self.config = flat_settings(config)
        self._folder = processes.new_folder()
        self._held: dict[str, socket.socket] = {}
        self._addresses: dict[str, str] = {}
        self._log_from = 0
        self._running = self._prepared = False
        self.clock = BrokerClock(self._ask)
        #: The same helpers for tests that are coroutines: `await weir.aio.wait_for("orders")`.
        self.aio = AsyncHelpers(self)

    # --- addresses, as clients want them ------------------------------------------------------------------------

    @property
    def kafka(self) -> str:
        """`bootstrap_servers` of Kafka's clients."""
        return self.address("kafka")

    @property
    def pulsar(self) -> str:
        """The service URL of Pulsar's clients."""
        return f"pulsar://{self.address('pulsar')}"

    @property
    def amqp(self) -> str:
        """The URL of RabbitMQ's clients, and the broker URL of Celery."""
        return f"amqp://guest:guest@{self.address('amqp')}/%2F"

    @property
    def rocketmq(self) -> str:
        """The endpoint of RocketMQ's clients."""
        return self.address("rocketmq")

    @property
    def http(self) -> str:
        """The base URL of the admin API."""
        return f"http://{self.address('http')}"

    def address(self, listener: str) -> str:
        """`host:port` of a listener, by its name in the settings, `kafka_tls` say."""
        try:
            return self._addresses[listener]
        except KeyError:
            served = ", ".join(self._addresses)
            raise BrokerFailedError(f"this broker does not listen for {listener}, only for {served}") from None

    # --- its life -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._running

    def start(self) -> None:
        """After `stop` or `kill`: with the same data, addresses and clock."""
        if self._running:
            return
        self.prepare()
        self._prepared = False
        told = self._processes.ask("ready", self._folder)
        self._addresses = dict(told["addresses"])
        self._running = True

    def prepare(self) -> None:
        """Have it start, without waiting for that."""
        if self._prepared or self._running:
            return
        ports = {name: self._port(name) for name in _LISTENERS}
        spec = {
            "folder": self._folder,
            "config": self.config,
            "ports": ports,
            "ahead_s": self.clock.ahead_s,
            "silent_s": self.clock.silent_s,
        }
        self._processes.ask("start", self._folder, spec=spec)
        self._prepared = True

    def stop(self) -> None:
        """In order: what was accepted is stored, and clients are told."""
        if self._running:
            self._ask("stop")
            self._processes.ask("wait", self._folder)
            self._gone()

    def kill(self) -> None:
        """At once, as by `kill -9`. What was acknowledged is there when it is started again."""
        if self._running:
            self._processes.ask("kill", self._folder)
            self._gone()

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def close(self) -> None:
        """For good: nothing of it is left."""
        self._processes.ask("kill", self._folder)
        self._running = self._prepared = False
        for each in self._held.values():
            each.close()
        self._held.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- messages -----------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *values: object,
        key: bytes | str | None = None,
        headers: Mapping[str, object] | None = None,
        partition: int | None = None,
        delay: Duration = 0,
    ) -> None:
        """Put messages into a topic or queue: bytes, text, or anything that JSON can say. `delay`: seen so much
        later, by the broker's clock."""
        messages = [message_to(value, key, headers) for value in values]
        self._ask("produce", name=topic, messages=messages, partition=partition, delay_s=seconds_of(delay))

    def messages(self, topic: str) -> list[Message]:
        """What a new reader would see: in the order of each partition. None where there is no such topic."""
        return [message_from(item) for item in self._ask("messages", name=topic)]

    def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: Duration = 10,
        *,
        where: Callable[[Message], bool] | None = None,
    ) -> list[Message]:
        """All messages, once there are `count` (of those for which `where` holds); NotYetError, an AssertionError,
        if there are fewer after `timeout`, which is real time. The topic need not exist yet."""
        __tracebackhide__ = True
        left_s, wanted = seconds_of(timeout), count
        clock = _stopwatch()
        while True:
            rest_s = max(0.0, left_s - clock())
            items = self._ask("wait_messages", wait_s=rest_s, name=topic, count=wanted, timeout_s=rest_s)
            found = [message_from(item) for item in items]
            chosen = found if where is None else [message for message in found if where(message)]
            if len(chosen) >= count:
                return chosen
            if clock() >= left_s:
                raise NotYetError(_missing(topic, count, chosen, found, seconds_of(timeout)))
            wanted = len(found) + 1

    def backlogs(self, topic: str, subscription: str | None = None) -> dict[str, int]:
        """Messages that are not acknowledged, by subscription. A group of Kafka's that has committed is one; so is
        an AMQP queue."""
        found: dict[str, int] = self._ask("backlogs", name=topic, subscription=subscription)
        return found

    def wait_until_empty(self, topic: str, subscription: str | None = None, timeout: Duration = 10) -> None:
        """Wait until every message of the topic or queue is acknowledged by its subscriptions, or by that one (a
        group's name will do); there must be one. NotYetError if that is not so after `timeout`."""
        __tracebackhide__ = True
        seconds = seconds_of(timeout)
        left = self._ask("wait_empty", wait_s=seconds, name=topic, subscription=subscription, timeout_s=seconds)
        if not left or any(left.values()):
            whose = "no subscription" if subscription is None else f"no subscription {subscription!r}"
            said = ", ".join(f"{name!r} has {count} to acknowledge" for name, count in left.items() if count)
            raise NotYetError(f"after {seconds:g} s, of {topic!r} {said or f'{whose} is known'}")

    def topics(self) -> list[str]:
        """Every topic that somebody made, by its short name if it is of `public/default`."""
        found: list[str] = self._ask("topics")
        return found

    # --- looking at it ------------------------------------------------------------------------------------------

    def log(self) -> str:
        """What it logged in this test, the last 64 KiB of it."""
        try:
            with open(f"{self._folder}/log", "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_from, size - _LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def forget_log(self) -> None:
        """A new test begins, which what was logged before does not concern."""
        self._log_from += len(self.log().encode())

    def __repr__(self) -> str:
        where = ", ".join(f"{name} {address}" for name, address in self._addresses.items())
        return f"<WeirBroker {where if self._running else 'not running'}>"

    # --- asking -------------------------------------------------------------------------------------------------

    def _ask(self, what: str, *, wait_s: float = 0.0, **more: Any) -> Any:
        __tracebackhide__ = True
        if not self._running:
            raise BrokerFailedError("the broker is not running: start() it")
        with socket.socket(socket.AF_UNIX) as control:
            # An advance takes as long as what becomes due; only somebody who waits says for how long.
            control.settimeout(wait_s + _GRACE_S if wait_s else None)
            try:
                control.connect(f"{self._folder}/control")
                control.sendall(json.dumps({"do": what, **more}).encode() + b"\n")
                with control.makefile("rb") as answers:
                    line = answers.readline()
            except OSError as failed:
                line, reason = b"", f": {failed}"
            else:
                reason = ""
        if not line:
            raise BrokerFailedError(
                f"the broker does not answer{reason}; its log ends with:\n{self.log()[-2000:]}"
            )
        told = json.loads(line)
        if "refused" in told:
            raise BrokerFailedError(told["refused"])
        return told["answer"]

    def _port(self, listener: str) -> int:
        """One that stays this broker's while it is down: bound here, where nobody listens."""
        if listener not in self._held:
            held = self._held[listener] = socket.socket()
            held.bind((_LOOPBACK, 0))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for who is to listen there
        port: int = self._held[listener].getsockname()[1]
        return port

    def _gone(self) -> None:
        self._running = False
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/control")


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their full names, from names with dots or from sections; values as `--set` takes them."""
    return dict(_flat(config))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, str(value).lower()
        elif isinstance(value, list | tuple):
            yield prefix + name, ",".join(map(str, value))
        else:
            yield prefix + name, "" if value is None else str(value)


def _stopwatch() -> Callable[[], float]:
    from time import monotonic

    began = monotonic()
    return lambda: monotonic() - began


def _missing(topic: str, count: int, chosen: list[Message], found: list[Message], seconds: float) -> str:
    shown = ", ".join(f"{message.value!r}"[:80] for message in found[-5:])
    of = f" of {len(found)}" if len(found) != len(chosen) else ""
    last = f"; the last are {shown}" if shown else ""
    return f"{topic!r} has {len(chosen)}{of} messages of the {count} that were waited for {seconds:g} s{last}"


class SpareBrokers:
    """At most one, with the settings of the last: tests beside each other usually have the same."""

    def __init__(self, processes: BrokerProcesses) -> None:
        self._processes = processes
        self._spare: WeirBroker | None = None

    def take(self, config: Mapping[str, Any]) -> WeirBroker:
        """One that nobody has used, with these settings; it may be starting already."""
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.config == flat_settings(config):
                return spare
            spare.close()
        return WeirBroker(self._processes, config)

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Have one with these settings ready."""
        if self._spare is None:
            with suppress(BrokerFailedError):  # whoever asks for it next is told
                self._spare = WeirBroker(self._processes, config)
                self._spare.prepare()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

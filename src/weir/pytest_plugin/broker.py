"""A broker as its test sees it: where it is, its clock, what is in it, and its ends and beginnings."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from weir.pytest_plugin.aio import AsyncHelpers
from weir.pytest_plugin.clock import BrokerClock
from weir.pytest_plugin.durations import Duration, seconds_of
from weir.pytest_plugin.errors import BrokerFailedError, NotYetError
from weir.pytest_plugin.messages import Message, message_from, message_to
from weir.pytest_plugin.processes import BrokerProcesses

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

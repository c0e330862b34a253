"""`python -m bench.kafka_tools`: Apache Kafka's command-line tools against `weir up`, each with what it must say.

--only NAME     only tools whose name contains NAME (may be repeated)
--server H:P    against a broker that runs already
--patience S    how long Maven may take to get them, the first time

Ends with 0 if all tools did as they should, with 1 if one did not, and with 77 if Maven cannot get them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_peer import ARTIFACTS
from weir.testing.processes.up import UpProcess

MISSING = 77
_TIMEOUT_S = 120
_TOOLS = "org.apache.kafka.tools"
_TOPICS = f"{_TOOLS}.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_GROUPS = f"{_TOOLS}.consumer.group.ConsumerGroupCommand"
_MESSAGES = 1000
_SERVER = "{server}"
_FILE = "{file}"
#: A tool runs for a moment: it is not worth to warm up for long, or to have much memory.
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class Step:
    """One start of a tool. `says` must all be in its output; `shows` must find nothing wrong with it. Where the
    broker is comes first, unless an argument names it."""

    name: str
    tool: str
    arguments: tuple[str, ...]
    says: tuple[str, ...] = ()
    typed: str = ""
    #: What is in the file that an argument names.
    file: str = ""
    shows: Callable[[str], str] = lambda _: ""


def _verified_sent(output: str) -> str:
    events = _events(output)
    sent = [event["value"] for event in events if event["name"] == "producer_send_success"]
    return "" if sent == [str(n) for n in range(_MESSAGES)] else f"{len(sent)} of {_MESSAGES} were acknowledged"


def _verified_read(output: str) -> str:
    read = sum(event["count"] for event in _events(output) if event["name"] == "records_consumed")
    return "" if read == _MESSAGES else f"{read} of {_MESSAGES} were read"


def _epoch_for_each(output: str) -> str:
    """Transactions, version 2: every one of them has counted the producer's epoch on."""
    lines = [line.split() for line in output.splitlines() if line.startswith(("CoordinatorId", "0"))]
    found = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}
    # How many transactions there were is a matter of speed.
    return "" if int(found.get("ProducerEpoch", 0)) > 0 else f"no epoch for each transaction: {output}"


def _events(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def steps() -> list[Step]:
    """In an order in which each finds what it needs; the verifiable ones need nothing."""
    orders = ("--topic", "orders")
    entity = ("--entity-type", "topics", "--entity-name", "orders")
    count = str(_MESSAGES)
    return [
        Step(
            "topics create",
            _TOPICS,
            ("--create", *orders, "--partitions", "3", "--config", "retention.ms=100000"),
            ("Created topic orders",),
        ),
        Step("topics list", _TOPICS, ("--list",), ("orders",)),
        Step("topics grow", _TOPICS, ("--alter", *orders, "--partitions", "4")),
        Step(
            "topics describe",
            _TOPICS,
            ("--describe", *orders),
            ("PartitionCount: 4", "ReplicationFactor: 1", "retention.ms=100000"),
        ),
        Step(
            "configs set", _CONFIGS, ("--alter", *entity, "--add-config", "retention.bytes=5000"), ("Completed",)
        ),
        Step(
            "configs describe", _CONFIGS, ("--describe", *entity), ("retention.bytes=5000", "retention.ms=100000")
        ),
        Step(
            "configs put back",
            _CONFIGS,
            ("--alter", *entity, "--delete-config", "retention.bytes"),
            ("Completed",),
        ),
        Step(
            "configs of a broker",
            _CONFIGS,
            ("--describe", "--all", "--entity-type", "brokers", "--entity-name", "0"),
            ("node.id=0", "log.retention.ms=604800000"),
        ),
        Step(
            "console producer",
            f"{_TOOLS}.ConsoleProducer",
            (*orders, "--property", "parse.key=true"),
            typed="a\tone\nb\ttwo\nc\tthree\n",
        ),
        Step(
            "console consumer",
            f"{_TOOLS}.consumer.ConsoleConsumer",
            (
                *(*orders, "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000"),
                *("--group", "console", "--property", "print.key=true"),
            ),
            ("a\tone", "b\ttwo", "c\tthree", "total of 3 messages"),
        ),
        Step("consumer groups list", _GROUPS, ("--list",), ("console",)),
        Step("consumer groups describe", _GROUPS, ("--describe", "--group", "console"), ("orders", "LAG")),
        Step(
            "consumer groups reset",
            _GROUPS,
            ("--reset-offsets", "--to-earliest", "--execute", "--group", "console", *orders),
            ("orders",),
        ),
        Step(
            "consumer groups state",
            _GROUPS,
            ("--describe", "--group", "console", "--state", "--verbose"),
            ("Empty", "has no active members"),
        ),
        Step(
            "consumer groups members",
            _GROUPS,
            ("--describe", "--group", "console", "--members", "--verbose"),
            ("has no active members",),
        ),
        Step(
            "consumer groups shift",
            _GROUPS,
            ("--reset-offsets", "--shift-by", "5", "--execute", "--group", "console", "--topic", "orders:0"),
            ("NEW-OFFSET", "orders"),
        ),
        Step(
            "consumer groups forget",
            _GROUPS,
            ("--delete-offsets", "--group", "console", "--topic", "orders:1"),
            ("Request succeeded", "Successful"),
        ),
        Step("consumer groups delete", _GROUPS, ("--delete", "--group", "console"), ("successful",)),
        Step("offsets", f"{_TOOLS}.GetOffsetShell", orders, ("orders:0:", "orders:3:")),
        Step("log dirs", f"{_TOOLS}.LogDirsCommand", ("--describe",), ('"partition":"orders-0"',)),
        Step(
            "cluster id",
            f"{_TOOLS}.ClusterTool",
            ("cluster-id", "--bootstrap-server", _SERVER),
            ("Cluster ID: weir",),
        ),
        Step(
            "verifiable producer",
            f"{_TOOLS}.VerifiableProducer",
            ("--topic", "verified", "--max-messages", count, "--acks", "-1"),
            shows=_verified_sent,
        ),
        Step(
            "verifiable consumer",
            f"{_TOOLS}.VerifiableConsumer",
            (
                *("--topic", "verified", "--group-id", "verified", "--max-messages", count),
                *("--reset-policy", "earliest"),
            ),
            shows=_verified_read,
        ),
        Step(
            "delete records",
            f"{_TOOLS}.DeleteRecordsCommand",
            ("--offset-json-file", _FILE),
            ("low_watermark",),
            file='{"partitions": [{"topic": "verified", "partition": 0, "offset": 500}], "version": 1}',
        ),
        Step(
            "offsets, moved",
            f"{_TOOLS}.GetOffsetShell",
            ("--topic", "verified", "--time", "earliest"),
            ("verified:0:500",),
        ),
        Step(
            "transactional producer",
            f"{_TOOLS}.ProducerPerformance",
            (
                *("--topic", "transactions", "--num-records", count, "--record-size", "100"),
                *("--throughput", "-1", "--transactional-id", "tools", "--transaction-duration-ms", "50"),
                *("--producer-props", f"bootstrap.servers={_SERVER}"),
            ),
            (f"{count} records sent",),
        ),
        Step("transactions", f"{_TOOLS}.TransactionsCommand", ("list",), ("tools",)),
        Step(
            "features",
            f"{_TOOLS}.FeatureCommand",
            ("describe",),
            ("transaction.version", "FinalizedVersionLevel: 2"),
        ),
        Step(
            "transactional id",
            f"{_TOOLS}.TransactionsCommand",
            ("describe", "--transactional-id", "tools"),
            ("CompleteCommit",),
            shows=_epoch_for_each,
        ),
        Step(
            "transactional input",
            f"{_TOOLS}.ProducerPerformance",
            (
                *("--topic", "originals", "--num-records", count, "--record-size", "10", "--throughput", "-1"),
                *("--producer-props", f"bootstrap.servers={_SERVER}"),
            ),
            (f"{count} records sent",),
        ),
        Step(
            "transactional copier",
            f"{_TOOLS}.TransactionalMessageCopier",
            (
                *("--broker-list", _SERVER, "--input-topic", "originals", "--input-partition", "0"),
                *("--output-topic", "copies", "--transactional-id", "copier", "--transaction-size", "100"),
                *("--consumer-group", "copiers", "--group-mode", "--use-group-metadata", "--enable-random-aborts"),
            ),
            ('"stage":"ShutdownComplete"', '"remaining":0}'),
        ),
        Step(
            "copies, committed",
            f"{_TOOLS}.consumer.ConsoleConsumer",
            (
                *("--topic", "copies", "--from-beginning", "--max-messages", str(2 * _MESSAGES)),
                *("--timeout-ms", "10000", "--isolation-level", "read_committed"),
            ),
            (f"total of {count} messages",),
        ),
        Step(
            "committed only",
            f"{_TOOLS}.consumer.ConsoleConsumer",
            (
                *("--topic", "transactions", "--from-beginning", "--max-messages", count, "--timeout-ms", "60000"),
                *("--isolation-level", "read_committed"),
            ),
            (f"total of {count} messages",),
        ),
        Step(
            "consumer performance",
            f"{_TOOLS}.ConsumerPerformance",
            ("--topic", "transactions", "--messages", count, "--timeout", "60000"),
            (f", {count}, ",),
        ),
        Step("topics delete", _TOPICS, ("--delete", *orders)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kafka_tools", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--server", metavar="HOST:PORT")
    parser.add_argument("--patience", type=float, default=900.0, metavar="SECONDS")
    arguments = parser.parse_args()
    reason = ARTIFACTS.missing(patience_s=arguments.patience)
    if reason:
        print(f"Apache Kafka's tools cannot run here: {reason}")
        return MISSING
    wanted = [step for step in steps() if not arguments.only or any(name in step.name for name in arguments.only)]
    if arguments.server:
        return _run_all(wanted, arguments.server)
    with tempfile.TemporaryDirectory(prefix="weir-tools-") as folder:
        up = UpProcess(Path(folder)).start()
        try:
            return _run_all(wanted, up.kafka)
        finally:
            up.close()


def _run_all(wanted: list[Step], server: str) -> int:
    failed = 0
    for step in wanted:
        begun = time.monotonic()
        wrong, output = _run(step, server)
        print(f"{step.name:<26} {'ok' if not wrong else 'WRONG: ' + wrong} ({time.monotonic() - begun:.1f} s)")
        if wrong:
            failed += 1
            print("    " + output.replace("\n", "\n    "))
    return 1 if failed else 0


def _run(step: Step, server: str) -> tuple[str, str]:
    """What is wrong, if anything, and what the tool said."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(step.file)
        file.flush()
        given = {_SERVER: server, _FILE: file.name}
        try:
            done = subprocess.run(
                _command(step, given),
                input=step.typed,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {_TIMEOUT_S} s", ""
    output = done.stdout + done.stderr
    absent = [words for words in step.says if words not in output]
    if done.returncode:
        return f"it ended with {done.returncode}", output
    if absent:
        return f"it did not say {absent}", output
    return step.shows(done.stdout), output


def _command(step: Step, given: dict[str, str]) -> list[str]:
    arguments = list(step.arguments)
    if not any(_SERVER in argument for argument in arguments):
        arguments[:0] = ["--bootstrap-server", _SERVER]
    for name, value in given.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    return ["java", *_JVM, "-cp", ARTIFACTS.classpath, step.tool, *arguments]


if __name__ == "__main__":
    sys.exit(main())

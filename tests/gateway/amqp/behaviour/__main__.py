"""`python -m tests.gateway.amqp.behaviour`: ask a broker, and compare with what RabbitMQ answered.

record             start Debian's RabbitMQ and write down its answers (twice; what differs between both is told)
ask ADDRESS URL    ask the broker at ADDRESS (AMQP) and URL (management), and show what differs
--only NAME        only scenarios with this in their names (may be repeated)

Ends with 1 if something differs, and with 77 if RabbitMQ is not installed.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.gateway.amqp.behaviour import every
from tests.gateway.amqp.behaviour.scenario import AUTHORITY, SCENARIOS, Broker, answers

MISSING = 77


def make_certificates(folder: Path) -> None:
    """An authority, which is the server, too, and clients."""
    from tests.gateway.amqp.behaviour.certificates import NAMES

    from weir.testing.certificates import make_certificate

    folder.mkdir()
    server = make_certificate(folder, AUTHORITY)
    for name in NAMES:
        make_certificate(folder, name, server)


def main() -> int:
    parser = argparse.ArgumentParser(prog="behaviour", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record")
    asked = commands.add_parser("ask")
    asked.add_argument("address")
    asked.add_argument("management", nargs="?", default="")
    arguments = parser.parse_args()
    names = [name for name in SCENARIOS if not arguments.only or any(part in name for part in arguments.only)]
    if arguments.command == "record":
        return record(names)
    return compare(names, Broker(arguments.address, arguments.management))


def record(names: list[str]) -> int:
    from bench import rabbitmq_peer

    if why := rabbitmq_peer.missing():
        print(why)
        return MISSING
    with tempfile.TemporaryDirectory() as folder:
        certificates = Path(folder) / "certificates"
        make_certificates(certificates)
        peer = rabbitmq_peer.RabbitMq(
            Path(folder),
            plugins=("rabbitmq_management", "rabbitmq_auth_mechanism_ssl"),
            certificates=certificates,
        )
        peer.start()
        try:
            peer.wait()
            there = Broker(peer.amqp, peer.management, amqps=peer.amqps, certificates=certificates, ctl=peer.ctl)
            return written(names, there)
        finally:
            peer.stop()


def written(names: list[str], broker: Broker) -> int:
    """Ask twice: what a broker does now so and now so is no answer."""
    first, second = answers(names, broker), answers(names, broker)
    unsteady = [name for name in names if first[name] != second[name]]
    for name in unsteady:
        print(f"{name} is not steady:\n  {json.dumps(first[name])}\n  {json.dumps(second[name])}")
    failed = [name for name in names if str(first[name]).startswith("failed at")]
    for name in failed:
        print(f"{name}: {first[name]}")
    every.save(every.recorded() | first)
    return 1 if unsteady or failed else 0


def compare(names: list[str], broker: Broker) -> int:
    began = time.monotonic()
    found = answers(names, broker)
    seconds = time.monotonic() - began
    known = every.recorded()
    differing = [name for name in names if every.judged(name, found[name], known.get(name))]
    for name in differing:
        print(f"{name}:\n  {every.judged(name, found[name], known.get(name))}")
    print(f"{len(names) - len(differing)} of {len(names)} as RabbitMQ, in {seconds:.1f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

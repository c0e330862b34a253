"""`python -m bench.amqp_clients NAME --server H:P`: clients of RabbitMQ in other languages.

Names: java (RabbitMQ's client, by Maven), node (amqplib, by npm), go (amqp091-go, by go). Each has a program that
says `ok` for every step. What they need is fetched once and kept, with what is compiled, under the cache folder.
Ends with 0 if all steps are right, with 1 if one is not, and with 77 if the client is not to be had here.
"""

import sys
from pathlib import Path

from bench.foreign_clients import Programs, check
from bench.maven import Artifacts

_TIMEOUT_S = 120
PROGRAMS = Programs(
    Path(__file__).parent / "amqp_programs",
    Artifacts("amqp-client-5.26.0", ("com.rabbitmq:amqp-client:5.26.0",)),
    "amqplib@2.3.1",
    "github.com/rabbitmq/amqp091-go@v1.16.0",
)


def _addressed(server: str) -> list[str]:
    host, _, port = server.rpartition(":")
    return [host, port]


if __name__ == "__main__":
    sys.exit(check(PROGRAMS, __doc__, _TIMEOUT_S, _addressed))

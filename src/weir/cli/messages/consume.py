"""`weir consume`: messages of a topic to standard output."""

import click

from weir.cli.completing import complete_subscription, complete_topic
from weir.cli.messages.consume_session import Session, Wanted, left_out
from weir.cli.messages.consume_start import Begin, Start, find_begin
from weir.cli.messages.format import WORDS, MessageFormat
from weir.cli.messages.views import Printer
from weir.cli.output import Output
from weir.cli.remote import Remote, remote_options
from weir.cli.values import parse_span_ms
from weir.client.addresses import parse_url
from weir.client.consumer import Subscribing
from weir.client.pulsar import PulsarClient
from weir.model.errors import ConfigError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.pulsar.ids import LATEST
from weir.wire.pulsar.proto import api

_TYPES = {
    "exclusive": api.CommandSubscribe.Exclusive,
    "shared": api.CommandSubscribe.Shared,
    "failover": api.CommandSubscribe.Failover,
    "key-shared": api.CommandSubscribe.Key_Shared,
}
_SILENCE = "2s"


@click.command(
    epilog=f"""
\b
Examples:
  weir consume orders                            everything that is there; leaves no trace
  weir consume orders --follow --from latest     what comes from now on
  weir consume orders --from -10min              of the last ten minutes
  weir consume orders --offset 1500 -n 10        ten, from offset 1500 on (of each partition)
  weir consume orders --offset -5                the last five (of each partition)
  weir consume orders -s billing                 as a subscription; what is shown is acknowledged
  weir consume orders -s billing -n 10 --json    ten messages, one JSON object per line
  weir consume orders -F '%p:%o %k=%s %h%n'      as the format says
  weir consume orders -o wide                    with offset, time, key and headers

\b
In a format:
{WORDS}

It ends with 0 once everything that was there is printed, or -n messages; with 1 if anything kept it from that. It
never creates TOPIC: without one, --follow waits until it is created, and everything else is an error.
"""
)
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-s",
    "--subscription",
    metavar="SUB",
    shell_complete=complete_subscription,
    help="Consume by this subscription, created if it is new. Without: by a reader that leaves no trace.",
)
@click.option(
    "--type", "kind", type=click.Choice(list(_TYPES)), default="exclusive", show_default=True, help="Of SUB."
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Start position: earliest (the default), latest, an offset, a message id, a time, or a span (-10min).",
)
@click.option("--offset", type=int, metavar="N", help="Short for --from with an offset; -N: the last N messages.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="P", help="Of this partition alone.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until interrupted.")
@click.option(
    "--wait",
    metavar="SPAN",
    help=f"End if no message arrives for SPAN; {_SILENCE} by default, with -n or --follow only if given.",
)
@click.option("-F", "--format", "pattern", metavar="FORMAT", help="Print each message so: see below.")
@click.option("--no-ack", is_flag=True, help="Acknowledge nothing.")
@click.option("--compacted", is_flag=True, help="Only the last message of each key, as far as compacted.")
@remote_options(patient=True)
def consume(
    *,
    topic: str,
    subscription: str | None,
    kind: str,
    start: str | None,
    offset: int | None,
    partition: int | None,
    count: int | None,
    follow: bool,
    wait: str | None,
    pattern: str | None,
    no_ack: bool,
    compacted: bool,
    remote: Remote,
    out: Output,
) -> None:
    """Print the messages of TOPIC, one per line. Without --follow or -n, ends when there are no more."""
    name = TopicName.parse(topic)
    if partition is not None:
        name = name.at(partition)
    if start is not None and offset is not None:
        raise ConfigError("--from and --offset exclude each other", hint="give one of them")
    begin_at = Start.parse(start or "earliest") if offset is None else Start(offset=offset)
    remote.changes = subscription is not None
    printer = Printer(out, None if pattern is None else MessageFormat(pattern))
    begin = Begin()
    try:
        begin = _begin(remote, name, begin_at, subscription)
    except TopicNotFoundError:
        if not follow:
            raise
    asked = Subscribing(
        subscription=subscription or "",
        type=_TYPES[kind],
        earliest=begin_at.at != LATEST,
        durable=subscription is not None,
        start=None if subscription is not None else begin_at.at,
        starts=begin.starts,
        create_topic=False,
        read_compacted=compacted,
    )
    silence = wait if wait is not None else None if follow or count is not None else _SILENCE
    wanted = Wanted(
        count=count,
        patience_s=None if silence is None else parse_span_ms(silence) / 1000,
        ack=subscription is not None and not no_ack,
        follow=follow,
        offsets=begin.offsets,
        to_the_end=begin_at.at != LATEST and not compacted,
    )

    async def work(runtime: Runtime, client: PulsarClient) -> Session:
        session = Session(client, str(name), asked, wanted, printer)
        await session.run(runtime)
        return session

    session = remote.broker(topic, work)
    if parse_url(remote.url).http and not follow:
        remote.admin(lambda admin: left_out(admin, name, session))


def _begin(remote: Remote, topic: TopicName, start: Start, subscription: str | None) -> Begin:
    if not start.asked:
        return Begin()
    if subscription is not None:
        raise ConfigError(
            "a subscription goes on where it was; a new one begins at earliest or latest",
            hint=f"move it with weir groups reset {subscription} --topic {topic.local} --to WHERE",
        )
    if not parse_url(remote.url).http:
        raise ConfigError(f"{remote.url} cannot say where that is", hint="give --url http://host:8080")
    return remote.admin(lambda admin: find_begin(admin, topic, start))

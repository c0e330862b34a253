"""A session as others see it: in the list of connections, with its channels and consumers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.broker.api import ChannelConsumer, ChannelInfo, ConnectionInfo, ConnectionTraffic
from weir.gateway.amqp.channel.channel import Channel
from weir.gateway.amqp.connection.states import State
from weir.gateway.amqp.errors import Refusal
from weir.wire.amqp.codes import ReplyCode, reply_text
from weir.wire.amqp.plain import plain_fields

if TYPE_CHECKING:
    from weir.gateway.amqp.connection.session import Session


class ListedSession:
    """Fills `api.ClientConnection`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        host, _, port = session.peer.rpartition(":")
        here, here_port = session.address
        self.info = ConnectionInfo(
            name=f"{session.peer} -> {here}:{here_port}",
            user=session.user,
            role=session.role,
            namespace=session.vhost.namespace,
            vhost=session.vhost.name,
            peer_host=host.strip("[]"),
            peer_port=int(port) if port.isdigit() else 0,
            host=here,
            port=here_port,
            tls=session.secure,
            auth_mechanism=session.credentials.mechanism,
            client_properties=plain_fields(session.client_properties),
            connected_ms=session.clock.wall_ms(),
            id=session.id,
            heartbeat_s=session.heartbeats.interval_s,
            frame_max=session.frame_max,
            channel_max=session.channel_max,
        )

    @property
    def traffic(self) -> ConnectionTraffic:
        session = self._session
        state = "closing" if session.state is not State.SERVING else "running"
        if session.blocking.blocked:
            state = "blocked"
        return ConnectionTraffic(
            received_bytes=session.received_bytes,
            sent_bytes=session.outbox.sent_bytes,
            received_frames=session.received_frames,
            sent_frames=session.outbox.writes,
            state=state,
        )

    def channels(self) -> Sequence[ChannelInfo]:
        return [_channel(each) for _, each in sorted(self._session.channels.items())]

    def close(self, reason: str) -> None:
        code = ReplyCode.CONNECTION_FORCED
        self._session.refuse(Refusal(code, reply_text(code, reason)))


def _channel(channel: Channel) -> ChannelInfo:
    confirms, transaction = channel.confirms, channel.transaction
    return ChannelInfo(
        channel.number,
        tuple(
            ChannelConsumer(
                link.tag,
                link.queue.declaration.name,
                link.request.no_ack,
                link.request.exclusive,
                link.request.prefetch,
                link.request.priority,
                arguments=link.request.arguments,
            )
            for link in channel.consumers.values()
        ),
        unacked=len(channel.unacked),
        unconfirmed=0 if confirms is None else confirms.outstanding,
        uncommitted_messages=0 if transaction is None else len(transaction.messages),
        uncommitted_acks=0 if transaction is None else transaction.settlements,
        prefetch=channel.prefetch,
        global_prefetch=channel.global_prefetch,
        confirm=confirms is not None,
        transactional=transaction is not None,
        published=channel.published,
        confirmed=0 if confirms is None else confirms.next - 1 - confirms.outstanding,
        returned=channel.returned,
        delivered=channel.delivered,
        acked=channel.acked,
        redelivered=channel.redelivered,
    )

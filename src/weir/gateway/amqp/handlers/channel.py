"""Classes channel, confirm and tx, and the tickets of class access."""

from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.confirms import Confirms
from weir.gateway.amqp.errors import precondition_failed, refuse
from weir.gateway.amqp.handlers.basic import settle
from weir.gateway.amqp.method_table import handles
from weir.gateway.amqp.transaction import Outcome, Transaction
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.methods import Method, access, confirm, tx
from weir.wire.amqp.methods import channel as methods


@handles(methods.Open)
def open_again(_channel: Channel, _method: methods.Open) -> None:
    raise refuse(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


@handles(methods.Close)
async def close(channel: Channel, _method: methods.Close) -> Method:
    """Answer close-ok after the channel's publishes are stored and its unacknowledged messages requeued."""
    await channel.close()
    channel.session.forget_channel(channel)
    return methods.CloseOk()


@handles(methods.CloseOk)
def close_ok(_channel: Channel, _method: methods.CloseOk) -> None:
    """The client's answer to a close of the broker that crossed the client's own close."""


@handles(methods.Flow)
def flow(_channel: Channel, method: methods.Flow) -> Method:
    if not method.active:
        raise refuse(ReplyCode.NOT_IMPLEMENTED, "active=false")
    return methods.FlowOk(True)


@handles(methods.FlowOk)
def flow_ok(_channel: Channel, _method: methods.FlowOk) -> None:
    """Ignored: the broker never sends channel.flow."""


@handles(access.Request)
def ticket(_channel: Channel, _method: access.Request) -> Method:
    return access.RequestOk(1)


@handles(confirm.Select)
def confirm_select(channel: Channel, method: confirm.Select) -> Method | None:
    if channel.transaction is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number, channel.session.outbox.say, channel.session.outbox.say_last)
    return None if method.no_wait else confirm.SelectOk()


@handles(tx.Select)
def tx_select(channel: Channel, _method: tx.Select) -> Method:
    if channel.confirms is not None:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.session.limits)
    return tx.SelectOk()


@handles(tx.Commit)
async def tx_commit(channel: Channel, _method: tx.Commit) -> Method:
    """Store messages, then settle: after a failure in between, the broker redelivers the acknowledged messages."""
    transaction, outcome = _of(channel), Outcome()
    messages, settled = transaction.messages, transaction.settled
    transaction.clear()
    publishing = channel.session.publishing
    for method, facts, body in messages:
        work = publishing.put(channel, method, facts, body, who=outcome)
        if work is not None:
            await work
        await channel.session.turns.pause()
    publishing.flush()
    await outcome.known()
    for taken, how in settled:
        settle(channel, taken, how)
    channel.session.flush()
    if outcome.failed:
        raise precondition_failed("partial tx completion")
    return tx.CommitOk()


@handles(tx.Rollback)
def tx_rollback(channel: Channel, _method: tx.Rollback) -> Method:
    """Discard the transaction: its acknowledged messages become unacknowledged and stay with the client."""
    transaction = _of(channel)
    for taken, _ in transaction.settled:
        channel.unacked.put_back(taken)
    transaction.clear()
    return tx.RollbackOk()


def _of(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise precondition_failed("channel is not transactional")
    return channel.transaction

"""Opening a topic of either kind."""

from weir.broker.context import BrokerContext
from weir.broker.topic.non_persistent import NonPersistentTopic
from weir.broker.topic.topic import BrokerTopic
from weir.model.policies import Policies
from weir.model.topics import TopicName

AnyTopic = BrokerTopic | NonPersistentTopic


async def open_topic(
    context: BrokerContext, name: TopicName, policies: Policies, epoch: int, *, written: bool = False
) -> AnyTopic:
    """`written`: with a ledger, so that the first message does not wait for one."""
    if name.persistent:
        return await BrokerTopic.open(context, name, policies, epoch, written=written)
    return NonPersistentTopic(context, name, policies, epoch)

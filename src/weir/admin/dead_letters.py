"""Where dead letters may go: the broker writes them, with more rights than the role that names their topic."""

from weir.admin.context import AdminContext
from weir.model.registry import Action
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName


def check_dead_letters(context: AdminContext, role: str, topic: TopicName, policy: RetryPolicy | None) -> None:
    """NotAuthorisedError if the policy names a topic for the dead letters that the role may not produce to."""
    named = None if policy is None else policy.named_topic(topic)
    if named is not None:
        context.authoriser.check(role, Action.PRODUCE, named)

"""Functions of messages: what their authors import, and the processes that run them (docs/reference/functions.md).

from weir.functions import Message

def clean(message, context):
    context.state["seen"] = context.state.get("seen", 0) + 1
    return Message(message.value | {"seen": context.state["seen"]}, key=message.key)
"""

from weir.functions.api import Context, Message, State

__all__ = ["Context", "Message", "State"]

"""Weir in pytest: a fixture with a broker of the test's own, whose clock the test can move
(docs/how-to/pytest.md).

Found by pytest by its entry point, in every environment that has Weir: nothing here, and nothing that it imports,
loads more than the standard library before a test asks for a broker. For annotations:
`from weir.pytest_plugin import WeirBroker, Message`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.pytest_plugin.broker import WeirBroker
    from weir.pytest_plugin.messages import BrokerFailedError, Message, NotYetError

__all__ = ["BrokerFailedError", "Message", "NotYetError", "WeirBroker"]

_MODULES = {
    "BrokerFailedError": "messages",
    "Message": "messages",
    "NotYetError": "messages",
    "WeirBroker": "broker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

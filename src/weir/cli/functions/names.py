"""How commands name functions, and reach the Weir that has them."""

from weir.cli.remote import Remote
from weir.cli.spark.stream_changes import names_of, short_name
from weir.client import functions as rest
from weir.client.blocking import Access
from weir.client.functions import Deployed
from weir.model.errors import FunctionNotFoundError

_PATIENCE_S = 5.0


def access_of(remote: Remote, *, patience_s: float = _PATIENCE_S) -> Access:
    """`patience_s`: how long the server may be away."""
    return remote.access(patience_s)


def find(access: Access, name: str) -> Deployed:
    """By any of the ways to write its name; FunctionNotFoundError tells those that there are."""
    listed = rest.all_functions(access)
    for one in listed:
        space = one.function.name.namespace
        if name in names_of(one.function.name) | {f"{space.name}/{one.function.name.local}"}:
            return one
    known = ", ".join(short_name(one.function.name) for one in listed[:5])
    hint = f"there are {known}" if known else "there are none; weir functions deploy makes them"
    raise FunctionNotFoundError(f"there is no function {name}", hint=hint)

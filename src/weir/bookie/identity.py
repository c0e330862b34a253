"""The folder's identity: formatted once for one bookie id, with a random instance that tells disks apart."""

from weir.bookie.checkpoints import save_checkpoint
from weir.bookie.layout import Layout
from weir.bookie.small_files import read_small, write_small
from weir.model.errors import BookieCookieError, FileMissingError, WireError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.wire.checkpoint import Checkpoint, Position
from weir.wire.metadata import Cookie, decode_cookie, encode_cookie

_MEND = (
    "of a folder of weir up, weir verify says how to mend it; else bring the cookie back from a copy, or wipe the"
    " folder and start the bookie under a new id"
)
_EMPTY = Checkpoint(number=1, position=Position(sequence=1, offset=0, nonce=0), next_log=1)


async def read_cookie(runtime: Runtime, layout: Layout) -> Cookie:
    """Whose folder this is; FileMissingError if it was never formatted."""
    try:
        return await read_small(runtime.disk, layout.cookie, decode_cookie)
    except WireError as bad:
        raise BookieCookieError(f"{layout.cookie} is damaged: {bad.what}", hint=_MEND) from bad


async def claim_folder(runtime: Runtime, layout: Layout, bookie_id: BookieId) -> Cookie:
    """The folder's cookie, after formatting it if it is new; it must be of this bookie."""
    try:
        cookie = await read_cookie(runtime, layout)
    except FileMissingError:
        cookie = await _format(runtime, layout, bookie_id)
    if cookie.bookie_id != bookie_id:
        raise BookieCookieError(
            f"{layout.root} belongs to bookie {cookie.bookie_id!r}, not to {bookie_id!r}", hint=_MEND
        )
    return cookie


async def _format(runtime: Runtime, layout: Layout, bookie_id: BookieId) -> Cookie:
    """The cookie comes last: a folder without one holds nothing that anybody was promised."""
    for folder in (layout.journal, layout.logs):
        if await runtime.disk.list(folder):
            raise BookieCookieError(
                f"{folder} holds files, but {layout.cookie} is gone",
                hint=_MEND,
            )
    await save_checkpoint(runtime.disk, layout, _EMPTY)
    cookie = Cookie(bookie_id, f"{runtime.rng.getrandbits(128):032x}")
    await write_small(runtime.disk, layout.cookie, encode_cookie(cookie))
    return cookie

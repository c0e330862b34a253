"""The key layout: the only place that knows where a fact lives in the metadata store."""

from weir.model.ids import BookieId, LedgerId

#: The last ledger id given out, as decimal text.
LEDGER_COUNTER = "/weir/ledger-id"
LEDGERS = "/weir/ledgers/"
#: Bookies that take entries, each under its lease; value: `weir.wire.metadata` BookieInfo.
BOOKIES_WRITABLE = "/weir/bookies/writable/"
#: Bookies that only serve reads for now, each under its lease.
BOOKIES_READ_ONLY = "/weir/bookies/read-only/"
#: The disk identity that a bookie id was given for good.
COOKIES = "/weir/bookies/cookies/"
#: Ledgers with a lost replica; value: the lost bookies.
UNDERREPLICATED = "/weir/underreplicated/"
#: Held under a lease by the one node that looks for lost bookies.
AUDITOR = "/weir/auditor"
#: Held under a lease by the worker that repairs the ledger.
REPAIR_LOCKS = "/weir/repair-locks/"
#: Chains of ledgers, one per stream.
STREAMS = "/weir/streams/"


def ledger(ledger_id: LedgerId) -> str:
    """A ledger's metadata; zero-padded so that listing sorts by id."""
    return f"{LEDGERS}{ledger_id:020d}"


def ledger_id_of(key: str) -> LedgerId:
    """The ledger that a key from under LEDGERS, UNDERREPLICATED or REPAIR_LOCKS names."""
    return LedgerId(int(key.rpartition("/")[2]))


def bookie_writable(bookie_id: BookieId) -> str:
    return BOOKIES_WRITABLE + bookie_id


def bookie_read_only(bookie_id: BookieId) -> str:
    return BOOKIES_READ_ONLY + bookie_id


def bookie_id_of(key: str) -> BookieId:
    return BookieId(key.rpartition("/")[2])


def cookie(bookie_id: BookieId) -> str:
    return COOKIES + bookie_id


def underreplicated(ledger_id: LedgerId) -> str:
    return f"{UNDERREPLICATED}{ledger_id:020d}"


def repair_lock(ledger_id: LedgerId) -> str:
    return f"{REPAIR_LOCKS}{ledger_id:020d}"


def stream(name: str) -> str:
    return STREAMS + name

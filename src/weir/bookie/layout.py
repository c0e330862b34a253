"""Where a bookie's files lie in its folder, and what their names mean."""

from dataclasses import dataclass

_JOURNAL = ".journal"
_FREE = ".free"
_LOG = ".log"
_INDEX = ".idx"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folder of one bookie."""

    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def cookie(self) -> str:
        """Written last when the folder is formatted: with it, the folder is a bookie's."""
        return f"{self.root}/cookie"

    @property
    def checkpoints(self) -> tuple[str, str]:
        """Two copies, so that one bad sector does not take the fences of every ledger with it."""
        return f"{self.root}/checkpoint-a", f"{self.root}/checkpoint-b"

    @property
    def journal(self) -> str:
        return f"{self.root}/journal"

    @property
    def journal_end(self) -> str:
        """How far the journal was acknowledged (`weir.runtime.end_file`)."""
        return f"{self.root}/journal-end"

    @property
    def doubtful(self) -> str:
        """Ledgers of which an accepted loss may have taken a part."""
        return f"{self.root}/doubtful-ledgers"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    def journal_file(self, sequence: int) -> str:
        return f"{self.journal}/{sequence:016d}{_JOURNAL}"

    def free_file(self, sequence: int) -> str:
        """A used journal file that waits for its next life."""
        return f"{self.journal}/{sequence:016d}{_FREE}"

    def log_file(self, log: int) -> str:
        return f"{self.logs}/{log:08d}{_LOG}"

    def index_file(self, log: int) -> str:
        return f"{self.logs}/{log:08d}{_INDEX}"


def journal_sequences(names: list[str]) -> list[int]:
    return _numbers(names, _JOURNAL)


def free_sequences(names: list[str]) -> list[int]:
    return _numbers(names, _FREE)


def log_ids(names: list[str]) -> list[int]:
    return _numbers(names, _LOG)


def index_ids(names: list[str]) -> list[int]:
    return _numbers(names, _INDEX)


def _numbers(names: list[str], suffix: str) -> list[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())

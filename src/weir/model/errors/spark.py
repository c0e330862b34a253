"""Spark's side: SQL, and queries over topics."""

from weir.model.errors.base import WeirError
from weir.model.installation import install_command


class SqlError(WeirError):
    """A SQL statement that cannot be understood, or not be run."""


class SqlStreamNotFoundError(WeirError):
    """SQL has defined no stream of this name."""

    hint = "SHOW STREAMS lists them"


class ReplayNotFoundError(WeirError):
    """There is no replay of this id."""


class ReplayStateError(WeirError):
    """A replay that has ended, or that cannot go on."""


class SqlStreamExistsError(WeirError):
    """There is a stream of this name already."""

    hint = "drop it first, or choose another name"


class RunnerBusyError(WeirError):
    """Another process runs the streams."""

    hint = "one is enough; stop it first to run them here"


class SparkSetupError(WeirError):
    """Spark cannot run here."""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        install = f"install it with {install_command('spark')}; weir doctor says what is missing"
        super().__init__(what, hint=install if hint is None else hint)


class SparkJvmError(WeirError):
    """The JVM of this process can run no query any more; only a new process can."""

    hint = "start it again; weir up --streams does so by itself"
    #: By which those who started the process know that a new one will do better.
    exit_code = 75


class DataLostError(WeirError):
    """Offsets that a query still wanted are no longer in the topic."""

    hint = "set failOnDataLoss=false to go on with what is there"


class LakeError(WeirError):
    """A table of the lake that cannot be written or read as it is."""


class LakeUnfinishedError(LakeError):
    """Some rows of an export are in the table, each once; what came behind them failed."""


class LakeConflictError(LakeError):
    """Somebody else has committed to the table meanwhile; nothing was added."""

    hint = "it is tried again; let one `weir lake run` export a topic"

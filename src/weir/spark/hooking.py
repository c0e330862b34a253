"""PySpark's readers and writers, taught to look for tables, and to find this format in every session: whenever
PySpark is loaded, before or after `weir.spark`.

Nothing here loads PySpark: commands that only ask for a word of the lake would wait for it.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from weir.model.errors import SparkSetupError

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
    from weir.spark.source.source import WeirSource

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
            from weir.spark.lake.table_reads import joined

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

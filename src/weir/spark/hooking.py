"""PySpark's readers, taught to look for tables: whenever PySpark is loaded, before or after `weir.spark`.

Nothing here loads PySpark: commands that only ask for a word of the lake would wait for it.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE, _NAME = "pyspark.sql.readwriter", "weir"
#: What is kept of a reader, beside what it tells the JVM.
_FORMAT, _GIVEN, _SCHEMA = "_weir_format", "_weir_given", "_weir_schema"


def hook_readers() -> None:
    """Now if PySpark is loaded, else when it is."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _install(loaded.DataFrameReader)
    elif not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as others would, and has a word with it once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(fullname)
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
        _install(module.DataFrameReader)


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

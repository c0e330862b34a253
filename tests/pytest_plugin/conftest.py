"""The fixtures under test, also in an environment that was installed before they had their entry point."""

from weir.pytest_plugin.plugin import _weir_processes, _weir_spares, weir, weir_factory, weir_session

__all__ = ["_weir_processes", "_weir_spares", "weir", "weir_factory", "weir_session"]

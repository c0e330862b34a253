"""Connects the process of a streaming source to Spark before it loads PySpark.

Spark starts `python -m pyspark.sql.streaming.python_streaming_source_runner` for each query, and waits 10 s, which
cannot be configured, until it has connected. Loading PySpark and Arrow on a busy machine takes longer. Python runs
this module before any other: it connects, and hands the connection over when PySpark asks for one. After the
connection Spark waits without a limit.

It is found through the PYTHONPATH of that process alone (weir.spark.source_environment), and loads no more than it
must. A `sitecustomize` that the user has runs after it.
"""

import sys

_MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
_ASKED = "pyspark.worker_util"


def _connect():  # type: ignore[no-untyped-def]  # no annotations: `typing` takes time to load
    """Connect and authenticate as `pyspark.worker_util.get_sock_file_to_executor` does; the socket."""
    import os
    import socket
    import struct

    limit_s = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    path, secret = (
        os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH"),
        os.environ.get("PYTHON_WORKER_FACTORY_SECRET"),
    )
    if path is not None:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(limit_s)
        found.connect(path)
    else:
        six = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
        address = ("::1" if six else "127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"]))
        found = socket.create_connection(address, limit_s)
        word = (secret or "").encode()
        found.sendall(struct.pack(">i", len(word)) + word)
        answer = b""
        while len(answer) < 6:
            more = found.recv(6 - len(answer))
            if not more:
                raise ConnectionError("Spark has closed the connection")
            answer += more
        if answer != b"\0\0\0\2ok":
            raise ConnectionError("Spark has refused the connection")
    found.sendall(struct.pack(">i", os.getpid()))
    return found


def _hand_over(connection):  # type: ignore[no-untyped-def]
    """Have PySpark's function give this connection."""
    import importlib.util
    import os
    from contextlib import contextmanager

    @contextmanager
    def get_sock_file_to_executor(timeout=-1):  # type: ignore[no-untyped-def]
        if timeout is None or timeout > 0:
            connection.settimeout(timeout)
        file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
        try:
            yield file
        finally:
            file.close()

    class Finder:
        def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
            if name != _ASKED:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module):  # type: ignore[no-untyped-def]
                    run(module)
                    module.get_sock_file_to_executor = get_sock_file_to_executor

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())


def _run_other():  # type: ignore[no-untyped-def]
    """The `sitecustomize` that Python would have found without this one."""
    import os
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if sys.orig_argv[1:3] == ["-m", _MODULE]:
        _hand_over(_connect())  # type: ignore[no-untyped-call]
    _run_other()  # type: ignore[no-untyped-call]

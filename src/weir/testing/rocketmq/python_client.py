"""RocketMQ's Python client, imported so that it leaves nothing behind.

It opens a log below the home of whoever imports it, and writes there for as long as the process lives.
"""

import importlib
import logging
import os
from tempfile import TemporaryDirectory

_LOGGER = "rocketmq-python-client"


def load_quietly() -> None:
    """To be called before anything of `rocketmq` is imported: its log goes nowhere."""
    home = os.environ.get("HOME")
    with TemporaryDirectory(prefix="rocketmq-client-") as folder:
        os.environ["HOME"] = folder
        try:
            importlib.import_module("rocketmq")
        finally:
            if home is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = home
        logger = logging.getLogger(_LOGGER)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.addHandler(logging.NullHandler())

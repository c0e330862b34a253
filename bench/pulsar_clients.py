"""`python -m bench.pulsar_clients --server URL --admin URL`: Pulsar's client for Go (pulsar-client-go, by go).

The program says `ok` for every step. The client is fetched once and kept, with what is compiled, under the cache
folder. Ends with 0 if all steps are right, with 1 if one is not, with 77 if the client is not to be had here.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from bench.foreign_clients import MISSING, MissingError, Programs
from bench.maven import Artifacts

_TIMEOUT_S = 300
PROGRAMS = Programs(
    Path(__file__).parent / "pulsar_programs",
    Artifacts("pulsar-client-4.0.7", ("org.apache.pulsar:pulsar-client:4.0.7",)),
    "pulsar-client@1.14.0",
    "github.com/apache/pulsar-client-go@v0.19.0",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--server", required=True, metavar="URL", help="as in pulsar://127.0.0.1:6650")
    parser.add_argument("--admin", required=True, metavar="URL", help="as in http://127.0.0.1:8080")
    arguments = parser.parse_args()
    try:
        command = PROGRAMS.go()
    except MissingError as why:
        print(why)
        return MISSING
    command = [*command, arguments.server, arguments.admin, uuid4().hex[:8]]
    return 1 if subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode else 0


if __name__ == "__main__":
    sys.exit(main())

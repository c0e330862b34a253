"""`python -m bench.rocketmq_clients NAME --server H:P`: clients of RocketMQ in other languages than Python.

Names: java (rocketmq-client-java, by Maven), node (rocketmq-client-nodejs, by npm), go (rocketmq-clients/golang,
by go). Each has a program that says `ok` for every step. What they need is fetched once and kept, with what is
compiled, under the cache folder. Ends with 0 if all steps are right, with 1 if one is not, with 77 if the client
is not to be had here.
"""

import sys
from pathlib import Path

from bench.foreign_clients import Programs, check
from bench.maven import Artifacts

_TIMEOUT_S = 200
_JAVA = Artifacts("rocketmq-client-java-5.1.0", ("org.apache.rocketmq:rocketmq-client-java:5.1.0",))
PROGRAMS = Programs(
    Path(__file__).parent / "rocketmq_programs",
    _JAVA,
    "rocketmq-client-nodejs@1.0.8",
    "github.com/apache/rocketmq-clients/golang/v5@v5.1.1",
    options=(f"-Duser.home={_JAVA.cache}",),  # where it would write its log
)


if __name__ == "__main__":
    sys.exit(check(PROGRAMS, __doc__, _TIMEOUT_S, lambda server: [server]))

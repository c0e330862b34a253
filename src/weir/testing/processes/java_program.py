"""A program in Java that does as it is told, line by line, and says what it did in lines that begin with `> `."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

_PATIENCE_S = 120.0
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_LINES_TOLD = 60


class JavaProgram:
    """Runs from its source. `options`: of the virtual machine, besides its size."""

    def __init__(self, classpath: str, source: Path, *arguments: str, options: Sequence[str] = ()) -> None:
        command = ["java", *_JVM, *options, "-cp", classpath, str(source), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._answers: Queue[str | None] = Queue()
        self._said: list[str] = []
        self._reading = Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if line.startswith("> "):
                self._answers.put(line.removeprefix("> ").strip())
        self._answers.put(None)

    def tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def said(self, patience_s: float = _PATIENCE_S) -> str:
        """Its next answer."""
        try:
            answer = self._answers.get(timeout=patience_s)
        except Empty:
            answer = None
        assert answer is not None, "".join(self._said[-_LINES_TOLD:])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._process.kill()
            self._reading.join()

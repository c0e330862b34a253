"""A peer from Maven's central repository, made runnable without its distribution.

A generated project names what is wanted; Maven resolves and downloads the rest once, into its own repository, and
says the class path, which is kept under the cache folder. `WEIR_BENCH_CACHE` moves that folder.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_RESOLVE_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What to fetch, each as `group:artifact:version[:classifier]`, and the folder of the cache for it."""

    folder: str
    wanted: tuple[str, ...]
    #: Fetched without what they depend on: the others bring that.
    alone: tuple[str, ...] = ()

    @property
    def cache(self) -> Path:
        return Path(os.environ.get("WEIR_BENCH_CACHE", Path.home() / ".cache" / "weir-bench")) / self.folder

    @property
    def classpath(self) -> str:
        return self._classpath_file.read_text().strip()

    @property
    def _classpath_file(self) -> Path:
        return self.cache / "classpath"

    def missing(self, *, patience_s: float = _RESOLVE_TIMEOUT_S) -> str:
        """Why they cannot run here, or nothing; the first time this downloads them."""
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                return f"there is no {program} here"
        if self._classpath_file.exists():
            return ""
        self.cache.mkdir(parents=True, exist_ok=True)
        (self.cache / "pom.xml").write_text(_project(self.wanted, self.alone))
        partial = self.cache / "classpath.new"
        resolve = ["mvn", "-B", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={partial}"]
        try:
            done = subprocess.run(
                resolve,
                cwd=self.cache,
                capture_output=True,
                check=False,
                timeout=patience_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return "Maven did not get it in time"
        if done.returncode or not partial.exists():
            return "Maven could not get it"
        partial.rename(self._classpath_file)
        return ""


def _project(wanted: tuple[str, ...], alone: tuple[str, ...]) -> str:
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        [_dependency(name, nothing) for name in alone] + [_dependency(name, "") for name in wanted]
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>weir.bench</groupId><artifactId>peer</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _dependency(name: str, without: str) -> str:
    group, artifact, version, *classifier = name.split(":")
    named = "".join(f"<classifier>{one}</classifier>" for one in classifier)
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{named}{without}</dependency>"
    )

"""A real ``mooncake_master``, installed once per machine, about 15 s and 100 MB.

It lies under ``$XDG_CACHE_HOME/disagg-run-tests`` (default ``~/.cache``). The program needs libibverbs, which a machine
without RDMA may lack: then Debian's packages are unpacked beside it, and nothing of the machine is changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs

from tests.real.vllm_cpu import Locked, cache_home

VERSION = "0.3.13.post1"

_PACKAGES = ("libibverbs1", "libnl-3-200", "libnl-route-3-200")


@attrs.frozen(kw_only=True)
class Master:
    """The program."""

    program: Path
    #: Directories of libraries that the machine does not have.
    libraries: tuple[Path, ...]

    def environ(self) -> dict[str, str]:
        """This process's variables, and where the libraries are."""
        found = [*map(str, self.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(each for each in found if each)}


def install() -> Master:
    """The program, ready to be run."""
    place = cache_home() / f"mooncake-{VERSION}-{sys.version_info.major}.{sys.version_info.minor}"
    venv, unpacked = place / "venv", place / "unpacked"
    with Locked(place):
        if not (place / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
            pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
            subprocess.run([*pip, f"mooncake-transfer-engine-non-cuda=={VERSION}"], check=True)
            (place / "done").touch()
        (program,) = venv.glob("lib/python*/site-packages/mooncake/mooncake_master")
        program.chmod(0o755)
        master = Master(program=program, libraries=_libraries(unpacked))
        if not _runs(master):
            _unpack(unpacked)
            master = Master(program=program, libraries=_libraries(unpacked))
    if not _runs(master):
        raise RuntimeError(f"{program} cannot be run: {_version(master).stderr}")
    return master


def _version(master: Master) -> subprocess.CompletedProcess[str]:
    words = [str(master.program), "--version"]
    return subprocess.run(words, env=master.environ(), capture_output=True, text=True, check=False, timeout=60)


def _runs(master: Master) -> bool:
    return _version(master).stdout.startswith("mooncake_master version")


def _libraries(unpacked: Path) -> tuple[Path, ...]:
    return tuple(sorted({file.parent for file in unpacked.glob("**/*.so.*")}))


def _unpack(target: Path) -> None:
    target.mkdir(exist_ok=True)
    try:
        subprocess.run(["apt-get", "-q", "download", *_PACKAGES], cwd=target, check=True)
    except subprocess.CalledProcessError:
        # A new machine has no lists of packages, or old ones.
        subprocess.run(["apt-get", "-q", "update"], check=True)
        subprocess.run(["apt-get", "-q", "download", *_PACKAGES], cwd=target, check=True)
    for package in target.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(target)], check=True)


if __name__ == "__main__":
    print(install().program)

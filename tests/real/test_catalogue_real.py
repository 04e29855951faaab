"""The shipped router catalogues against the routers themselves, installed here in environments of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import disagg_sglang
import disagg_vllm
from disagg_run.catalogue import Catalogue, read_catalogue
from disagg_run.catalogue_taking import catalogue_text, differences, is_installed, take_catalogue

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROUTERS = [
    ("sglang-router==0.3.2", ("@python", "-m", "sglang_router.launch_router"), disagg_sglang, "sglang-router-0.3.2"),
    ("vllm-router==0.1.17", ("vllm-router",), disagg_vllm, "vllm-router-0.1.17"),
]


@pytest.mark.parametrize(("requirement", "program", "package", "stem"), ROUTERS, ids=[row[0] for row in ROUTERS])
def test_a_shipped_catalogue_is_what_the_real_router_takes(
    tmp_path: Path, requirement: str, program: tuple[str, ...], package: object, stem: str
) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    assert not is_installed(python, program)
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", requirement], check=True)
    assert is_installed(python, program)
    taken = take_catalogue(python, program)
    file = Path(str(package.__file__)).parent / "catalogues" / f"{stem}.json"  # type: ignore[attr-defined]
    assert differences(read_catalogue(file), Catalogue(taken)) == ()
    assert catalogue_text(taken) == file.read_text()
    assert json.loads(catalogue_text(taken)) == taken

"""A package installed for each test of patches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patching.driving import in_memory
from tests.patching.toy import install


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return install(tmp_path / "site")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as directory:
        yield directory

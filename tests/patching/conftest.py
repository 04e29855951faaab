"""A package installed for each test of patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patching.toy import install


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return install(tmp_path / "site")

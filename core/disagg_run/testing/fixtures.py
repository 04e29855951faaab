"""pytest fixtures for plugin authors: ``pytest_plugins = ["disagg_run.testing.fixtures"]`` in their ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from disagg_run.testing.distributions import FakeDistribution, installed_plugin


class InstallPlugin(Protocol):
    """``install_plugin(name, plugin)``: see ``installed_plugin``."""

    def __call__(
        self, name: str, plugin: object, *, distribution: str | None = None, version: str = "1.0"
    ) -> FakeDistribution: ...


@pytest.fixture
def install_plugin(tmp_path: Path) -> Iterator[InstallPlugin]:
    """Installs plugins as fake distributions until the test ends."""
    with ExitStack() as stack:

        def install(
            name: str, plugin: object, *, distribution: str | None = None, version: str = "1.0"
        ) -> FakeDistribution:
            return stack.enter_context(
                installed_plugin(tmp_path, name, plugin, distribution=distribution, version=version)
            )

        yield install

"""The patched modules of each release, their bounds and what they log."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from disagg_run.patching import apply_patches
from disagg_vllm.patches_moriio import offered
from tests.real.moriio.patched import NAMES, PATCHED
from tests.real.stubbed import loaded
from tests.real.vllm_sources import copy_tree, vllm_tree


@pytest.fixture(scope="session")
def tree_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The patched sources of a release, made once for all files."""

    @functools.cache
    def patched(release: str) -> Path:
        tree = copy_tree(vllm_tree(release), tmp_path_factory.mktemp("vllm") / release)
        states = apply_patches([patch for patch in offered() if "moriio" in patch.sets], target=tree)
        assert {state.state for state in states} == {"applied"}
        return tree

    return patched


@pytest.fixture(scope="module", params=PATCHED)
def vllm(request: pytest.FixtureRequest, tree_of: Callable[[str], Path]) -> Iterator[SimpleNamespace]:
    """The patched modules of one release."""
    tree = tree_of(request.param)
    with loaded(tree, *NAMES) as modules:
        names = ("common", "engine", "connector", "request", "scheduler", "core")
        yield SimpleNamespace(version=request.param, tree=tree, **dict(zip(names, modules, strict=True)))


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "0.3")
    monkeypatch.setenv("DISAGG_MORIIO_DEFER_TIMEOUT_S", "0.4")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that no test waits for, where something must happen long before."""
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "30")


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

"""The host behaves alike on the releases of pluggy that we allow; they differ in what they check and pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.real


@pytest.mark.parametrize("version", ["1.5.0", "1.6.0", "1.7.0"])
def test_the_hosts_tests_pass_on(version: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"pluggy=={version}"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    seen = subprocess.run(
        [sys.executable, "-c", "import pluggy; print(pluggy.__version__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == version
    modules = [str(TESTS / name) for name in ("test_host.py", "test_host_loading.py", "test_testing_kit.py")]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules]
    done = subprocess.run(argv, env=environment, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

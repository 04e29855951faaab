"""The core names no engine, connector or router of ours: not in code, not in comments, not in examples."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

CORE = Path(__file__).parents[1] / "core" / "disagg_run"


def test_no_file_of_the_core_names_a_plugin_of_ours() -> None:
    points = [point for point in entry_points(group="disagg_run") if point.dist and point.dist.name == "disagg-run"]
    words = {word for point in points for word in point.name.split("-")} - {"disagg", "patches", "shared", "storage"}
    assert {"sglang", "vllm", "atom", "mooncake"} <= words
    # As a part of a name too: VLLM_PORT, but not atomic.
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted({*words, 'atomesh'}))})(?![a-z])", re.IGNORECASE)
    named = [
        f"{path.relative_to(CORE)}:{number}: {line.strip()}"
        for path in sorted(CORE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert named == []

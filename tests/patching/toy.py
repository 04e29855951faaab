"""An installed package ``toy`` to be patched, and patches for it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import attrs

from disagg_run.records import Edit, Patch

SERVER = '''\
"""A server that waits."""
import time


class Server:
    def wait(self, peer):
        # Spins.
        while True:
            if peer in self.ready:
                break
            continue

    def other(self, peer):
        while True:
            if peer in self.ready:
                break
            continue

    def finish(self, request):
        assert request in self.requests
        self.free(request)
'''

LOOP = '''\
"""A loop that blocks."""


def loop(server, queue):
    while server.alive:
        server.handle(queue.get())
'''

WAIT = Patch(
    id="toy-wait",
    why="The server waits for ever.",
    upstream="https://example.org/toy/1",
    package=["toy", "toy-cpu"],
    versions=">=1.0,<2.0",
    fixed_in="2.0",
    fixed_by="the wait has a bound",
    instead="--wait-timeout",
    sets=["bounds"],
    file="toy/server.py",
    edits=[
        Edit(
            scope="Server.wait",
            by="statements",
            anchor="while True:\n    if peer in self.ready:\n        break\n    continue\n",
            replacement="until = time.monotonic() + 30\nwhile peer not in self.ready and time.monotonic() < until:\n"
            "    time.sleep(0.001)\n",
        )
    ],
)

FINISH = Patch(
    id="toy-finish",
    why="A request that is gone ends the server.",
    package=["toy"],
    versions=">=1.0",
    sets=["bounds"],
    file="toy/server.py",
    edits=[
        Edit(
            anchor="        assert request in self.requests\n",
            replacement="        if request not in self.requests:\n            return\n",
        )
    ],
)

#: Builds on ``FINISH`` and changes two files.
REAPER = Patch(
    id="toy-reaper",
    why="What is leaked is never freed.",
    package=["toy"],
    versions=">=1.0",
    requires=["toy-finish"],
    file="toy/server.py",
    edits=[
        Edit(scope="Server.finish", by="statements", anchor="return", replacement="self.reap()\nreturn"),
        Edit(
            file="toy/loop.py",
            scope="loop",
            by="statements",
            anchor="server.handle(queue.get())",
            replacement="server.handle(queue.get(timeout=1))",
        ),
    ],
)

ALL = (WAIT, FINISH, REAPER)


def install(root: Path, version: str = "1.2", *, server: str = SERVER, name: str = "toy") -> Path:
    """The package in an import root, as an installer leaves it."""
    package = root / "toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(server)
    (package / "loop.py").write_text(LOOP)
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return root


def digests(root: Path) -> dict[str, str]:
    """Every file of an import root, by what is in it."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def sources(root: Path) -> dict[str, str]:
    """The package's source files."""
    return {f"toy/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.glob("toy/*.py"))}


def by_state(states: object) -> dict[str, str]:
    """Patch -> state."""
    return {state.id: state.state for state in states}  # type: ignore[attr-defined]


def edited(patch: Patch, **changes: Any) -> Patch:
    """A patch with other fields."""
    return attrs.evolve(patch, **changes)

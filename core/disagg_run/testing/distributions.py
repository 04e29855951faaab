"""Fake distributions: real metadata in a directory on ``sys.path``, so that plugins are found as installed ones are."""

from __future__ import annotations

import importlib
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from disagg_run.host_loading import GROUP


@attrs.frozen(kw_only=True)
class FakeDistribution:
    """A distribution as pip leaves it: a ``dist-info`` directory and the modules of its plugins.

    ``write()`` makes the files, ``installed()`` also puts them on ``sys.path`` for the length of a ``with`` block.
    """

    #: Its own directory; it is created.
    directory: Path
    #: Name of the distribution.
    name: str
    #: Entry point name -> source text of a module, or the plugin itself (an object or module).
    plugins: Mapping[str, object]
    version: str = "1.0"

    def write(self) -> None:
        """Write modules and metadata; plugins that are objects exist only while ``installed()``."""
        stem = re.sub(r"[-_.]+", "_", self.name)
        metadata = self.directory / f"{stem}-{self.version}.dist-info"
        metadata.mkdir(parents=True)
        lines = [f"[{GROUP}]"]
        for name, plugin in self.plugins.items():
            module = self.module(name)
            if isinstance(plugin, str):
                (self.directory / f"{module}.py").write_text(plugin, encoding="utf-8")
                lines.append(f"{name} = {module}")
            else:
                lines.append(f"{name} = {module}:plugin")
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n", encoding="utf-8"
        )

    def module(self, plugin: str) -> str:
        """Name of the module that holds a plugin; of its own for each distribution."""
        return re.sub(r"\W", "_", f"fake_{self.name}_{plugin}")

    @contextmanager
    def installed(self) -> Iterator[FakeDistribution]:
        """Write it, and let this interpreter find it until the block ends."""
        self.write()
        modules = {self.module(name): plugin for name, plugin in self.plugins.items()}
        for module, plugin in modules.items():
            if not isinstance(plugin, str):
                holder = types.ModuleType(module)
                holder.plugin = plugin  # type: ignore[attr-defined]
                sys.modules[module] = holder
        sys.path.insert(0, str(self.directory))
        importlib.invalidate_caches()
        try:
            yield self
        finally:
            sys.path.remove(str(self.directory))
            for module in modules:
                sys.modules.pop(module, None)
            importlib.invalidate_caches()

    def environment(self) -> dict[str, str]:
        """This process's environment with the distribution found by child interpreters too (source plugins only)."""
        inherited = os.environ.get("PYTHONPATH", "")
        path = f"{self.directory}{os.pathsep}{inherited}" if inherited else str(self.directory)
        return {**os.environ, "PYTHONPATH": path}


@contextmanager
def installed_plugin(
    directory: Path, name: str, plugin: object, *, distribution: str | None = None, version: str = "1.0"
) -> Iterator[FakeDistribution]:
    """Install one plugin for the length of a ``with`` block.

    ``directory``: where to, for example pytest's ``tmp_path``. ``plugin``: source text of its module, or an object.
    ``distribution``: name of the distribution that brings it; None = ``<name>-dist``.
    """
    named = distribution or f"{name}-dist"
    fake = FakeDistribution(directory=directory / named, name=named, plugins={name: plugin}, version=version)
    with fake.installed():
        yield fake

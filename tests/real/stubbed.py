"""Modules of a source tree loaded with everything that they import replaced by stubs, but for the modules named.

The code that runs is the file's own; what it would reach (torch, sockets, RDMA) is not there.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

#: Top-level packages that are not looked for on this machine.
FOREIGN = ("vllm", "torch", "zmq", "msgpack", "msgspec", "mori", "regex", "numpy", "nixl_cu12", "tqdm", "transformers")


class _Anything(type):
    """Classes of which every attribute is another such class, and that can be subscripted and subclassed."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (Stub,), {})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Stub(metaclass=_Anything):
    """Stands in for any class, function or value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __getitem__(self, item: Any) -> Any:
        return Stub()

    def __iter__(self) -> Iterator[Any]:
        return iter((Stub(), Stub()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator gives back what it decorates.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Stub()


class _StubModule(types.ModuleType):
    __path__ = ()  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (Stub,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def __init__(self, tree: Path, real: Sequence[str]) -> None:
        self.tree, self.real = tree, real

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] not in FOREIGN:
            return None
        if fullname in self.real:
            file = self.tree / (fullname.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "vllm.logger":
            module.init_logger = logging.getLogger  # type: ignore[attr-defined]


@contextmanager
def loaded(tree: Path, *names: str) -> Iterator[list[Any]]:
    """The modules ``names`` of the import root ``tree``, which may import each other; the rest are stubs."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in FOREIGN}
    for name in before:
        del sys.modules[name]
    finder = _Finder(tree, names)
    sys.meta_path.insert(0, finder)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.dont_write_bytecode = written
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in FOREIGN]:
            del sys.modules[name]
        sys.modules.update(before)

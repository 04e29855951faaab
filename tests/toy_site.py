"""An interpreter that has a toy engine installed, for tests that take its flags."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

SERVER = ("@python", "-m", "toy_engine.server")

PARSER = """
    import argparse, atexit, functools, json, pathlib, threading, time

    class DeprecatedStoreTrue(argparse.Action):
        def __init__(self, option_strings, dest, heir=None, nargs=0, **kwargs):
            self.heir = heir
            super().__init__(option_strings, dest, nargs=0, **kwargs)

    def human_int(text):
        return int(text[:-1]) * 1000 if text.endswith("k") else int(text)

    def object_of(text):
        value = json.loads(text)
        if not isinstance(value, dict):
            raise argparse.ArgumentTypeError("no object")
        return value

    def dict_or_str(text):
        return json.loads(text) if text.startswith("{") else text

    def optional(of):
        def _optional(text):
            return None if text in ("", "None") else of(text)
        return _optional

    def add_flags(parser):
        parser.add_argument("model", nargs="?")
        parser.add_argument("--tp-size", "-tp", type=int, default=1)
        parser.add_argument("--memory", type=float)
        parser.add_argument("--length", type=human_int)
        parser.add_argument("--conf", type=json.loads)
        parser.add_argument("--object", type=object_of)
        parser.add_argument("--loader", type=dict_or_str)
        parser.add_argument("--count", type=optional(int))
        parser.add_argument("--backend", type=lambda s: s.lower().replace("-", "_"), choices=["x_y", "z"])
        parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."))
        parser.add_argument("--level", choices=[3, 1, 2], type=int, default=float("inf"))
        parser.add_argument("--names", nargs="+", default=["a"])
        parser.add_argument("--any", nargs="*")
        parser.add_argument("--pair", nargs=2)
        parser.add_argument("--peer", action="append", nargs="+")
        parser.add_argument("--chunked", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
        parser.add_argument("--old", action=DeprecatedStoreTrue, heir="--new")
        parser.add_argument("--version", action="version", version="1")
        return parser
"""


def record(*names: str, arity: Any = 1, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "arity": arity, **more}


WANTED = [
    record("--any", arity="*", type="str", kind="str"),
    record("--backend", type="<lambda>", choices=["x_y", "z"]),
    record("--chunked", "--no-chunked", arity=0, default=True, negatable=True),
    record("--conf", type="loads", kind="json"),
    record("--count", type="_optional", kind="int", literals=["", "None"]),
    record("--eager", arity=0, default=False),
    record("--folder", type="Path"),
    record("--length", type="human_int", kind="size"),
    record("--level", type="int", kind="int", choices=["1", "2", "3"]),
    record("--loader", type="dict_or_str", kind="json_or_text"),
    record("--memory", type="float", kind="float"),
    record("--names", arity="+", type="str", kind="str", default=["a"]),
    record("--object", type="object_of", kind="json_object"),
    record("--old", arity=0, deprecated=True, successor="--new"),
    record("--pair", arity=2, type="str", kind="str"),
    record("--peer", arity="+", type="str", kind="str", repeatable=True),
    record("--tp-size", "-tp", type="int", kind="int", default=1),
]


class Site:
    """A folder of Python packages, and an interpreter that sees it."""

    def __init__(self, folder: Path) -> None:
        self.packages = folder / "site"
        self.scripts = folder / "bin"
        self.packages.mkdir()
        self.scripts.mkdir()
        # A link of its own, so that the scripts beside it are this interpreter's.
        self.python = str(self.scripts / "python")
        os.symlink(sys.executable, self.python)

    def module(self, name: str, text: str, *, parser: bool = False) -> None:
        file = self.packages / (name.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text((dedent(PARSER) if parser else "") + dedent(text))

    def distribution(self, name: str, version: str, *, top_level: str = "", script: str = "") -> None:
        info = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(top_level + "\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{script}\n" if script else "")

    def script(self, name: str, text: str) -> None:
        file = self.scripts / name
        file.write_text(f"#!{self.python}\n" + dedent(text))
        file.chmod(0o755)


def toy_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with the distribution ``toy-engine`` 1.2+local."""
    made = Site(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.packages))
    monkeypatch.setenv("TOY_TRACES", str(tmp_path))
    made.distribution("toy-engine", "1.2+local", top_level="toy_engine", script="toy = toy_engine.cli:main")
    return made


def flags_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [flag for flag in document["flags"] if flag["names"]]

"""A toy engine with settings of every type, and reading of what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disagg_run.declarations import Engine, Extension, ModelRow, Setting
from disagg_run.errors import SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Host, build_host
from disagg_run.spec.model import LaunchSpec
from disagg_run.spec.reading import read_spec


class ToyEngine:
    @hookimpl
    def disagg_plugin(self) -> Engine:
        return Engine(
            name="toy-disagg",
            summary="a toy",
            models=[ModelRow(name="toy-model")],
            versions="",
            default_version="1.0",
            default_connector="toy",
            contract_unset={"ROUTER_PORT": ["30000"]},
            settings=[
                Setting(name="block_size", type="int", summary="tokens in a block", env={"BLOCK_SIZE": None}),
                Setting(
                    name="dtype",
                    type="str",
                    summary="number format",
                    env={"TOY_DTYPE": None, "TOY_DECODE_DTYPE": "decode"},
                    unset_values=["fp8"],
                    choices=["fp8", "bf16"],
                ),
                Setting(name="sizes", type="list", summary="batch sizes"),
                Setting(name="graph", type="json", summary="graph options"),
                Setting(name="version_text", type="str", summary="some text"),
            ],
        )


class ToyConnector:
    @hookimpl
    def disagg_plugin(self) -> Extension:
        ports = Setting(name="handshake_port", type="int", summary="first port of the handshake")
        return Extension(name="toy", summary="a toy connector", kind="connector", settings=[ports])


BASE = {"engine": "toy-disagg", "model": "toy-model"}


def spec_host() -> Host:
    """A host with the toy engine and its connector."""
    return build_host(plugins=[ToyEngine(), ToyConnector()], entry_points=False)


def read(
    host: Host,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    recipe: Path | None = None,
) -> LaunchSpec:
    return read_spec(options={**BASE, **(options or {})}, recipe=recipe, environ=environ or {}, host=host)


def refused(host: Host, *args: Any, **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        read(host, *args, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path

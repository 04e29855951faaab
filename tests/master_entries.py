"""Master-config entries for tests: a good one, and changes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from disagg_run.spec.masterconfig import MasterConfig
from disagg_run.spec.reading import read_spec
from disagg_run.yamlfile import read_yaml
from tests.parity.case import host

BASE: dict[str, Any] = {
    "image": "rocm/atom:v1",
    "model": "deepseek-ai/DeepSeek-V4-Pro",
    "framework": "atom-disagg",
    "multinode": True,
    "disagg": True,
    "scenarios": {
        "fixed-seq-len": [
            {
                "isl": 8192,
                "osl": 1024,
                "search-space": [
                    {
                        "spec-decoding": "none",
                        "conc-list": [8],
                        "prefill": {"num-worker": 1, "tp": 8, "ep": 1, "dp-attn": False},
                        "decode": {"num-worker": 1, "tp": 8, "ep": 1, "dp-attn": False},
                    }
                ],
            }
        ]
    },
}

SPACE = ("scenarios", "fixed-seq-len", 0, "search-space", 0)


def entry(changes: Mapping[tuple[str | int, ...], Any]) -> str:
    """A file with one entry: BASE with the values at some paths replaced; ... takes a key out."""
    data = json.loads(json.dumps(BASE))
    for path, value in changes.items():
        below = data
        for part in path[:-1]:
            below = below[part]
        if value is ...:
            del below[path[-1]]
        else:
            below[path[-1]] = value
    return yaml.safe_dump({"one": data}, sort_keys=False)


def read(text: str, **environ: str) -> Any:
    config = MasterConfig(read_yaml(text, "m.yaml"))
    return read_spec(options={}, recipe=None, environ=environ, host=host(), point=config.entry("one").point(None))


def settings_of(role: str, *texts: str) -> dict[tuple[str | int, ...], Any]:
    return {(*SPACE, role, "additional-settings"): list(texts)}

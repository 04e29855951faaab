"""Plan records for tests, and what hypothesis may put into them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from disagg_run.planning.document import (
    After,
    Group,
    LaunchPlan,
    PlannedContainer,
    PlannedModel,
    PlannedProcess,
    RankPlan,
    Ready,
    Remark,
)
from disagg_run.records import Patch, Preflight
from disagg_run.spec.model import Node


def process(name: str = "prefill-0", argv: Iterable[str] = ("toy-server",), **fields: Any) -> PlannedProcess:
    return PlannedProcess(name=name, argv=argv, **{"kind": "server", **fields})


def launch(*ranks: Iterable[PlannedProcess | Group], address: str = "192.0.2.{}", **fields: Any) -> LaunchPlan:
    def group(item: PlannedProcess | Group) -> Group:
        return item if isinstance(item, Group) else Group(processes=[item])

    return LaunchPlan(
        engine="toy-disagg",
        engine_version="1.0",
        connector="toy-link",
        model=PlannedModel(name="toy-7b", path="/models/toy-7b", served_name="toy"),
        ranks=[
            RankPlan(
                rank=rank,
                node=Node(name=f"n{rank}", address=address.format(rank + 1)),
                groups=[group(item) for item in items],
            )
            for rank, items in enumerate(ranks)
        ],
        **{"bound": True, **fields},
    )


TWO_RANKS = launch(
    [
        Group(
            container=PlannedContainer(image="toy:1.0"),
            patches=[Patch(id="toy-fix", why="it waits for ever", package=["toy"], file="toy/a.py", edits=[])],
            preflight=[Preflight(name="model", kind="path_exists", target="/models/toy-7b")],
            processes=[
                process(
                    role="prefill",
                    argv=["toy-server", "--config", '{"a": [1, 2]}', "--name", "two words"],
                    env={"TOY_HOST": "192.0.2.1", "TOY_PORT": "8010"},
                    env_prepend={"PATH": ("/opt/toy",)},
                    unset=["TOY_DEBUG"],
                    secrets=["TOY_TOKEN"],
                    gpus=range(8),
                    ports={"http": 8010, "handshake": 6301},
                    port_counts={"handshake": 8},
                    ready=[Ready(kind="http", target="http://192.0.2.1:8010/health", timeout_s=1800)],
                )
            ],
        ),
        process(
            "router",
            ["toy-router"],
            kind="router",
            after=[After(process="prefill-0", until="ready"), After(process="decode-0", until="ready")],
        ),
    ],
    [process("decode-0", role="decode", gpus=[0, 1, 4], ports={"http": 8020})],
    warnings=[Remark(message="port 8010 is odd", source="plugin toy-disagg")],
    waived=[Remark(message="block-size differs")],
    bound=False,
)

values = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("'\"$`\\\n\r\t !*?[]{}~#;&|<>()=:\udc80\udcff"),
    max_size=16,
)

#: Names that bash treats in a way of its own are among them.
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True) | st.sampled_from(
    ["UID", "SECONDS", "RANDOM", "IFS", "PWD", "SHLVL", "BASH_ENV", "BASHOPTS", "POSIXLY_CORRECT", "LC_ALL", "PATH"]
)

path_names = st.sampled_from(["TOY_PATH", "LD_LIBRARY_PATH", "A", "b2"])

elements = st.lists(values, max_size=3)

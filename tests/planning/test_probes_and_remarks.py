"""Proofs by what a process prints, and remarks that flags bring to a plan's warnings."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest

from disagg_run import (
    Extension,
    Flag,
    LaunchPlan,
    LaunchSpec,
    Listener,
    Node,
    PluginError,
    Preflight,
    Probe,
    ProcessContext,
    RoleSpec,
    flag,
    hookimpl,
    plan,
)
from disagg_run.render.shell import render_shell
from tests.planning.toy import Site, toy_host


class Registry:
    """A site plugin by which the router prints each worker that has come."""

    name = "registry"

    def __init__(self, text: str) -> None:
        self.text = text

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="registry", summary="a registry", kind="site")

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        if ctx.process.kind != "router":
            return ()
        probes = [Probe(kind="output", text=self.text.replace("NAME", head.name), timeout_s=7) for head in ctx.heads]
        return [Listener(name="registry", default_port=7000, further_probes=probes)]


def made(*plugins: object, nodes: Iterable[Node] = (), **fields: object) -> LaunchPlan:
    spec = LaunchSpec(engine="toy-disagg", model="toy-model", nodes=nodes, **fields)  # type: ignore[arg-type]
    return plan(spec, host=toy_host(*plugins))


def test_a_printed_text_names_each_head_by_the_place_where_it_serves() -> None:
    nodes = [Node(address="10.0.0.1"), Node(address="fd00::2")]
    half = RoleSpec(tp=4)
    ready = made(Registry("Add [{http:NAME},"), nodes=nodes, prefill=attrs.evolve(half, workers=2), decode=half)
    proofs = [(each.target, each.timeout_s) for each in ready.process("router").ready if each.kind == "output"]
    ports = {name: ready.process(name).ports["http"] for name in ("prefill-0", "prefill-1", "decode-0")}
    assert ports["prefill-0"] != ports["prefill-1"]
    assert proofs == [
        (f"Add [10.0.0.1:{ports['prefill-0']},", 7.0),
        (f"Add [10.0.0.1:{ports['prefill-1']},", 7.0),
        (f"Add [[fd00::2]:{ports['decode-0']},", 7.0),
    ]
    assert LaunchPlan.from_json(ready.to_json()) == ready
    assert "Add [" not in "".join(render_shell(ready, rank.rank) for rank in ready.ranks)


def test_a_text_that_names_no_head_is_the_plugin_s_mistake() -> None:
    with pytest.raises(PluginError, match=r"names 'prefill-9', which is no head .*prefill-0, decode-0"):
        made(Registry("{http:prefill-9}"))


def test_a_flag_s_remark_is_a_warning_of_the_plan_once() -> None:
    remarked: list[Flag] = [attrs.evolve(flag("--quick"), remark="--quick may lose a token")]
    launch = made(Site("quick-site", flags=remarked), prefill=RoleSpec(workers=2))
    assert [each.message for each in launch.warnings] == ["--quick may lose a token"]
    assert all("--quick" in launch.process(name).argv for name in ("prefill-0", "prefill-1", "decode-0"))


def test_a_check_that_two_plugins_ask_for_is_made_once() -> None:
    driver = [Preflight(name="driver", kind="device_present", target=target) for target in ("/dev/a", "/dev/b")]
    group = made(Site("one", checks=driver), Site("two", checks=driver[:1])).ranks[0].groups[0]
    assert group.preflight == tuple(driver)

"""Waivers: which names there are, and what each let through in a plan."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

import attrs
import pytest
from click.testing import CliRunner

import disagg_run
from disagg_run import (
    Extension,
    Host,
    Node,
    NodeFacts,
    Preflight,
    RankContext,
    RoleSpec,
    SpecError,
    hookimpl,
    plan,
)
from disagg_run.cli.engines import command
from disagg_run.host import build_host
from disagg_run.planning.waivers import CORE_CHECKS, checks_of
from tests.engine_plans import PLANNED, TYPED
from tests.planning.toy import HOST, spec, toy_host


class _Careful:
    """A site with a check of its own, ``fans``, at planning time, and one on nodes, ``lights``."""

    def __init__(self, *, dark: bool = True) -> None:
        self.dark = dark

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="careful", summary="a site", kind="site", waivable={"fans": "a node that is too warm"})

    @hookimpl
    def disagg_preflight(self, ctx: RankContext) -> Iterable[Preflight]:
        if "fans" not in ctx.spec.waive and self.dark:
            raise SpecError("the fans are off", remedy="let it through with --waive fans")
        return [Preflight(name="lights", kind="path_exists", target="/lights", remedy="switch them on")]


def careful(*, dark: bool = True) -> Host:
    return toy_host(_Careful(dark=dark))


def test_a_name_that_nothing_checks_is_refused_with_the_nearest_and_all_that_there_are() -> None:
    asked = spec(waive=["fanz"], sources={"waive.fanz": TYPED})
    with pytest.raises(SpecError) as caught:
        plan(asked, host=careful(dark=False))
    assert str(caught.value) == (
        "nothing can be waived as 'fanz' (Python --args): did you mean 'fans'? what can be is block-size, fans,"
        " gpu-driver, gpu-vendor, gpu-visibility, host-paths, ib-devices, lights, load-length, model, plain-secrets,"
        " rdma-rails"
    )
    with pytest.raises(
        SpecError, match=r"nothing can be waived as 'tp' \(Python --args\): what can be is block-size, "
    ):
        plan(spec(waive=["tp"], sources={"waive.tp": TYPED}), host=HOST)


def test_what_a_waiver_let_through_is_told_by_the_error_that_there_would_be() -> None:
    made = plan(spec(waive=["fans"]), host=careful())
    assert [(remark.source, remark.message) for remark in made.waived] == [
        ("fans", "rank 0 (plugin 'careful'): the fans are off")
    ]
    assert made.warnings == ()


def test_a_check_on_nodes_that_is_waived_is_told_as_such() -> None:
    made = plan(spec(waive=["lights"]), host=careful(dark=False))
    said = "a node on which this check fails is warned of, and used"
    assert [(remark.source, remark.message) for remark in made.waived] == [("lights", said)]
    checks = [check for rank in made.ranks for group in rank.groups for check in group.preflight]
    assert {check.required for check in checks} == {False}


def test_each_of_several_waivers_is_told_by_itself() -> None:
    sizes = {"prefill": RoleSpec(settings={"block_size": 16}), "decode": RoleSpec(settings={"block_size": 32})}
    made = plan(spec(waive=["fans", "block-size", "lights"], **sizes), host=careful())
    assert {remark.source for remark in made.waived} == {"fans", "block-size", "lights"}
    assert next(each.message for each in made.waived if each.source == "block-size").startswith("block-size is '16'")


def test_a_waiver_that_let_nothing_through_is_warned_of_where_the_nodes_are_known() -> None:
    nodes = tuple(Node(name=f"n{rank}", address=f"10.0.0.{rank + 1}") for rank in range(2))
    facts = {rank: NodeFacts() for rank in range(2)}
    asked = spec(waive=["block-size"], nodes=nodes, sources={"waive.block-size": TYPED})
    made = plan(asked, facts, host=HOST)
    assert made.waived == ()
    assert [(each.message, each.source) for each in made.warnings] == [
        ("--waive block-size let nothing through", "Python --args")
    ]
    # A node may yet need it, and a simulation checks less than the run that the same file is for.
    assert plan(attrs.evolve(asked, waive=["ib-devices"]), host=HOST).warnings == ()
    assert plan(attrs.evolve(asked, simulate=True), facts, host=HOST).waived == ()


def test_two_plans_with_one_waiver_are_the_same() -> None:
    first, second = (plan(spec(waive=["fans"]), host=careful()) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_a_waived_variable_is_told_with_both_values() -> None:
    made = PLANNED["sglang"](
        env={"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"},
        waive=["gpu-visibility"],
    )
    assert "VISIBLE_DEVICES" in next(each.message for each in made.waived if each.source == "gpu-visibility")


def test_every_check_of_the_core_that_can_be_waived_is_listed() -> None:
    names = set()
    for module in pkgutil.walk_packages(disagg_run.__path__, "disagg_run."):
        if ".testing" in module.name or module.name.endswith("__main__") or module.name.endswith("_capture"):
            continue
        found = vars(importlib.import_module(module.name))
        names |= {value for name, value in found.items() if name.endswith("_CHECK") and isinstance(value, str)}
    assert names == set(CORE_CHECKS)


def page(name: str) -> str:
    """What ``disagg-run engines NAME`` prints."""
    ended = CliRunner().invoke(command, [name], standalone_mode=False, catch_exceptions=False)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("engine", sorted(build_host().engines()))
def test_the_page_of_an_engine_lists_what_can_be_waived(engine: str) -> None:
    shown = page(engine)
    for name in checks_of(build_host().engine(engine)):
        assert f"\n  {name} " in shown


@pytest.mark.parametrize("name", sorted(build_host().extensions()))
def test_every_extension_has_a_page(name: str) -> None:
    assert page(name).split()[1] == name

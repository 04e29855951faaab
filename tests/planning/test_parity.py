"""What prefill and decode must share, and what is let through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from disagg_run import Extension, ParityError, PluginError, RankContext, RoleSpec, SharedValue, hookimpl, plan
from disagg_run.spec.model import Role
from tests.planning.toy import HOST, spec, toy_host


def test_prefill_and_decode_that_differ_are_refused_with_both_values_and_can_be_waived() -> None:
    asked = spec(prefill=RoleSpec(settings={"block_size": 16}), decode=RoleSpec(settings={"block_size": 32}))
    with pytest.raises(ParityError, match=r"block-size is '16' for prefill-0 .* but '32' for decode-0"):
        plan(asked, host=HOST)
    made = plan(attrs.evolve(asked, waive=("block-size",)), host=HOST)
    assert [remark.source for remark in made.waived] == ["block-size"]


class _Alike:
    """A site that wants what ``function`` computes to be alike for both roles."""

    def __init__(
        self, function: Callable[[RankContext, Role], Any], why: str | Callable[[RankContext], str] = "halves must fit"
    ) -> None:
        self.function = function
        self.why = why

    @hookimpl
    def disagg_plugin(self) -> Extension:
        shared = SharedValue(name="size", computed=self.function, why=self.why)
        return Extension(name="alike", summary="a site", kind="site", parity=[shared])


def test_what_a_plugin_computes_for_each_role_must_be_alike() -> None:
    def size(ctx: RankContext, role: Role) -> int | None:
        return ctx.spec.role(role).tp

    host = toy_host(_Alike(size))
    assert plan(spec(), host=host).waived == ()
    asked = spec(prefill=RoleSpec(tp=4))
    with pytest.raises(
        ParityError, match=r"size is 4 for prefill-0 \(by size\) but 8 for decode-0 .*halves must fit.*"
    ):
        plan(asked, host=host)
    assert plan(attrs.evolve(asked, waive=["size"]), host=host).waived[0].source == "size"


def test_the_reason_may_follow_from_the_plan() -> None:
    def size(ctx: RankContext, role: Role) -> int | None:
        return ctx.spec.role(role).tp

    def why(ctx: RankContext) -> str:
        return f"{ctx.model.name} has no halves"

    asked = spec(prefill=RoleSpec(tp=4))
    with pytest.raises(ParityError, match=rf"size is 4 .* but 8 .*, and {asked.model} has no halves: make them equal"):
        plan(asked, host=toy_host(_Alike(size, why)))

    def broken(ctx: RankContext) -> str:
        raise KeyError("toy")

    with pytest.raises(PluginError, match=r"broken, which computes size of decode, failed: KeyError\('toy'\)"):
        plan(asked, host=toy_host(_Alike(size, broken)))


def test_a_computation_that_fails_is_a_plugin_error_that_names_it() -> None:
    def broken(ctx: RankContext, role: Role) -> int:
        raise KeyError("toy")

    with pytest.raises(PluginError, match=r"broken, which computes size of prefill, failed: KeyError\('toy'\)"):
        plan(spec(), host=toy_host(_Alike(broken)))

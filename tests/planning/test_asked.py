"""What is asked of the planner: models without a row, values of the wrong type, and who is said to have set them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disagg_run import (
    ArgText,
    Engine,
    LaunchPlan,
    RoleSpec,
    RouterSpec,
    SpecError,
    build_host,
    hookimpl,
    plan,
)
from tests.planning.toy import HOST, ToyEngine, ToyLink, spec


def test_an_engine_that_takes_any_model_takes_one_without_a_row_only_when_asked_twice() -> None:
    record = ToyEngine().disagg_plugin()

    class Anything(ToyEngine):
        def __init__(self, **changes: Any) -> None:
            self.record = attrs.evolve(record, any_model=True, **changes)

        @hookimpl
        def disagg_plugin(self) -> Engine:
            return self.record

    def planned(engine: Anything, model: str, **more: Any) -> LaunchPlan:
        host = build_host(plugins=[engine, ToyLink()], disabled=(), entry_points=False)
        return plan(attrs.evolve(spec(**more), model=model), host=host)

    with pytest.raises(SpecError, match=r"no model 'toy-modle'.*did you mean 'toy-model'\?.* --waive unknown-model$"):
        planned(Anything(), "toy-modle")
    assert planned(Anything(), "any", waive=["unknown-model"]).model.name == "any"
    assert planned(Anything(models=()), "any").model.name == "any"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefill": RoleSpec(tp="8")}, "prefill.tp of LaunchSpec is '8', but int or None is expected"),  # type: ignore[arg-type]
        ({"decode": RoleSpec(workers=True)}, "decode.workers of LaunchSpec is True, but int is expected"),
        ({"nodes": ["n0", "n1"]}, "nodes[0] of LaunchSpec is 'n0', but Node is expected: write Node(address=…)"),
        ({"prefill": 2}, "prefill of LaunchSpec is 2, but RoleSpec is expected"),
        ({"env": {"A": 1}}, "env.A of LaunchSpec is 1, but str is expected"),
        ({"router": RouterSpec(mode="own")}, "router.mode of LaunchSpec is 'own', but 'plan' or 'external' is"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(spec(**fields), host=HOST)
    assert str(caught.value).startswith(message)


def test_values_of_a_program_are_told_as_such() -> None:
    made = plan(spec(args=(ArgText(words=("--seed", "1")),), env={"A": "1"}), host=HOST)
    assert made.sources is not None
    sources = {pointer: str(chain[0][0]) for pointer, chain in made.sources.values.items()}
    assert sources["/ranks/0/groups/0/processes/0/env/A"] == "Python LaunchSpec"
    assert sources["/ranks/0/groups/0/processes/0/argv/--seed"] == "Python"

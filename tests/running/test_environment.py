"""The environment of a process: inherited, less what must not reach it, plus the plan's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_run.planning.document import PlannedProcess
from disagg_run.running.environment import TOKEN, missing_secrets, process_environment

NAMES = st.sampled_from(["A", "B", "PATH", "LD_LIBRARY_PATH"])
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
LISTS = st.dictionaries(NAMES, st.lists(VALUES, max_size=3).map(tuple))


def process(**fields: object) -> PlannedProcess:
    return PlannedProcess(name="p", kind="server", argv=("x",), **fields)  # type: ignore[arg-type]


def test_elements_stand_around_what_the_node_has_without_empty_ones() -> None:
    both = process(env_prepend={"LD_LIBRARY_PATH": ("/first", "/second")}, env_append={"LD_LIBRARY_PATH": ("/last",)})
    assert process_environment(both, {"LD_LIBRARY_PATH": "/node:"})["LD_LIBRARY_PATH"] == "/first:/second:/node:/last"
    assert process_environment(both, {})["LD_LIBRARY_PATH"] == "/first:/second:/last"


def test_elements_stand_around_the_plans_own_value_where_it_sets_one() -> None:
    own = process(env={"P": "/own"}, env_append={"P": ("/after",)})
    assert process_environment(own, {"P": "/node"})["P"] == "/own:/after"


def test_an_unset_variable_does_not_reach_the_process_and_is_not_extended() -> None:
    found = process_environment(process(unset=("P", "Q"), env_prepend={"P": ("/new",)}), {"P": "/node", "Q": "1"})
    assert found == {"P": "/new"}


def test_the_token_of_the_run_reaches_no_process() -> None:
    assert process_environment(process(), {TOKEN: "secret", "A": "1"}) == {"A": "1"}


def test_secrets_are_asked_for_by_name_and_an_empty_one_counts_as_missing() -> None:
    assert missing_secrets(process(secrets=("HAVE", "EMPTY", "NONE")), {"HAVE": "x", "EMPTY": ""}) == ["EMPTY", "NONE"]


@given(inherited=st.dictionaries(NAMES, VALUES), env=st.dictionaries(NAMES, VALUES), before=LISTS, after=LISTS)
def test_every_extended_variable_has_all_elements_in_order_and_no_empty_one(
    inherited: dict[str, str],
    env: dict[str, str],
    before: dict[str, tuple[str, ...]],
    after: dict[str, tuple[str, ...]],
) -> None:
    found = process_environment(process(env=env, env_prepend=before, env_append=after), inherited)
    for name in {*before, *after}:
        middle = env.get(name, inherited.get(name, ""))
        words = [*before.get(name, ()), middle, *after.get(name, ())]
        expected = [element for word in words for element in word.split(":") if element]
        assert found.get(name, "") == ":".join(expected)
        assert name not in found or expected
    for name in {*env, *inherited} - {*before, *after}:
        assert found[name] == env.get(name, inherited.get(name))

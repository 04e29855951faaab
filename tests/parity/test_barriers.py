"""The waits of the public launchers against our gates: the same endpoints, proofs as sure, and as much time."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import attrs
import pytest

from disagg_run import LaunchPlan, PlannedProcess
from tests.parity.barriers import Gap, gaps
from tests.parity.case import COMPARED, Case, load, names
from tests.parity.differences import table

#: Waits that our plans rightly do not have: (case, wait, kind) as patterns, and why.
RIGHT = {
    ("sglang/dsr1_fp8_1k1k_1p_tp8_1d_dep16_2nodes", "tcp_open 10.0.0.3:8000", "uncovered"): (
        "10.0.0.3 is the follower of the worker over two nodes: its head is ready only when the follower has joined,"
        " and only heads are in the router's list"
    ),
}


def compared(name: str) -> tuple[Case, LaunchPlan]:
    """A case and its plan; where we refuse the case's own input, the plan of what is compared instead."""
    case = load(name)
    changes: dict[str, str] = {}
    for entry in table(name.partition("/")[0]).refused:
        if entry.case == name:
            changes |= entry.instead
    return case, case.plan(changes)


def is_right(gap: Gap) -> bool:
    return any(
        fnmatchcase(gap.case, case) and fnmatchcase(gap.wait, wait) and gap.kind == kind for case, wait, kind in RIGHT
    )


@pytest.mark.parametrize("name", names(*COMPARED))
def test_every_wait_of_the_case_is_a_gate_of_the_plan(name: str) -> None:
    case, plan = compared(name)
    found = [gap for gap in gaps(case, plan) if not is_right(gap)]
    assert not found, "\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("key", RIGHT)
def test_every_wait_that_we_rightly_lack_is_still_in_its_case(key: tuple[str, str, str]) -> None:
    assert any((gap.case, gap.wait, gap.kind) == key for gap in gaps(*compared(key[0])))


@pytest.mark.parametrize("engine", COMPARED)
def test_the_cases_have_waits_for_servers_of_both_roles_and_for_the_router(engine: str) -> None:
    kinds = {(b["when"], b["kind"]) for name in names(engine) for r in load(name).data["ranks"] for b in r["barriers"]}
    assert {when for when, _ in kinds} >= {"after_server"}
    assert {kind for _, kind in kinds} & {"tcp_closed", "http_closed"}
    assert len(kinds) >= 4


# --- the comparison itself ---------------------------------------------------------------------------------------

CASE = "atom/dsv4_2p1d_dpa_tp8"


def changed(plan: LaunchPlan, name: str, change: Callable[[PlannedProcess], PlannedProcess]) -> LaunchPlan:
    ranks = []
    for rank in plan.ranks:
        groups = [
            attrs.evolve(group, processes=[change(each) if each.name == name else each for each in group.processes])
            for group in rank.groups
        ]
        ranks.append(attrs.evolve(rank, groups=groups))
    return attrs.evolve(plan, ranks=ranks)


def found(name: str, change: Callable[[PlannedProcess], PlannedProcess]) -> set[tuple[int, str, str]]:
    case, plan = compared(CASE)
    assert gaps(case, plan) == ()
    return {(gap.rank, gap.wait, gap.kind) for gap in gaps(case, changed(plan, name, change))}


def with_ready(**fields: Any) -> Callable[[PlannedProcess], PlannedProcess]:
    return lambda process: attrs.evolve(process, ready=[attrs.evolve(each, **fields) for each in process.ready])


def test_the_reference_polled_the_prefill_port_on_decode_nodes() -> None:
    """Faults R1 and B10: each role has its own port, in the case and in our gates."""
    _, plan = compared(CASE)
    targets = {process: plan.process(process).ready[0].target for process in ("prefill-0", "prefill-1", "decode-0")}
    assert targets == {
        "prefill-0": "http://10.0.0.1:8010/health",
        "prefill-1": "http://10.0.0.2:8010/health",
        "decode-0": "http://10.0.0.3:8020/health",
    }
    wrong = found("decode-0", with_ready(target="http://10.0.0.3:8010/health"))
    assert wrong == {(0, "http_ok 10.0.0.3:8020/health", "uncovered")}


def test_a_proof_that_is_weaker_shorter_or_of_another_path_is_seen() -> None:
    wait = "http_ok 10.0.0.2:8010/health"
    assert found("prefill-1", with_ready(kind="tcp", target="10.0.0.2:8010")) == {(0, wait, "weaker")}
    assert found("prefill-1", with_ready(target="http://10.0.0.2:8010/live")) == {(0, wait, "path")}
    assert found("prefill-1", with_ready(timeout_s=2499.0)) == {(0, wait, "shorter")}
    # Other ranks wait for the router from the start: for it and for the servers before it.
    short = found("router", with_ready(timeout_s=299.0))
    assert short == {
        (0, "http_ok 10.0.0.1:30000/v1/models", "shorter"),
        (1, "http_ok 10.0.0.1:30000/health", "shorter"),
        (2, "http_ok 10.0.0.1:30000/health", "shorter"),
    }


def test_a_router_that_does_not_wait_for_a_server_is_seen() -> None:
    def without(process: PlannedProcess) -> PlannedProcess:
        return attrs.evolve(process, after=[edge for edge in process.after if edge.process != "prefill-1"])

    assert found("router", without) == {(0, "http_ok 10.0.0.2:8010/health", "unordered")}


def test_a_rank_that_would_stay_for_something_else_than_the_router_is_seen() -> None:
    moved = found("router", with_ready(target="http://10.0.0.1:30001/v1/models"))
    assert {
        (1, "http_closed 10.0.0.1:30000/health", "uncovered"),
        (1, "http_ok 10.0.0.1:30000/health", "uncovered"),
    } <= moved

"""The bare form on every node of a job: when it acts as one rank, and that each then has the same plan."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import pytest

from disagg_run import LaunchSpec, SpecError, UsageError
from disagg_run.cli.main import main
from disagg_run.running.acting import Acting, acting_rank, step_id
from disagg_run.spec.model import Node
from tests.parity.case import DATA, ENGINES, load, names
from tests.parity.differences import table

NODES = (Node(name="n0", address="10.0.0.1"), Node(name="n1", address="10.0.0.2"))
LISTED = "10.0.0.1,10.0.0.2"
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "1",
}


def acting(
    environ: Mapping[str, str], *, nodes: tuple[Node, ...] = NODES, simulate: bool = False, asked: int | None = None
) -> Acting | None:
    spec = LaunchSpec(engine="toy-disagg", model="toy", nodes=nodes, simulate=simulate)
    return acting_rank(spec, 2, environ, asked=asked)


def test_a_job_scripts_rank_counts_beside_its_node_list() -> None:
    assert acting({"NODE_RANK": "1", "IPADDRS": LISTED}) == Acting(rank=1, why="NODE_RANK")
    assert acting({"NODE_RANK": "1"}) is None
    assert acting({"NODE_RANK": "", "IPADDRS": LISTED}) is None
    assert acting({"IPADDRS": LISTED}) is None


def test_a_slurm_step_counts_where_it_is_this_launch() -> None:
    """Fault B37: a launcher called from a plain batch script looked like rank 0 of 2."""
    assert acting(STEP) == Acting(rank=1, why="Slurm step 7.0")
    batch = {name: text for name, text in STEP.items() if name != "SLURM_STEP_ID"}
    assert acting({**batch, "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}) is None
    for other in ({"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_NODES": "1"}, {"SLURM_STEP_NUM_TASKS": "4"}):
        assert acting({**STEP, **other}) is None
    assert acting(STEP, nodes=()) is None


def test_the_option_comes_before_the_job_scripts_rank_and_that_before_slurms() -> None:
    environ = {**STEP, "NODE_RANK": "0", "IPADDRS": LISTED}
    assert acting(environ) == Acting(rank=0, why="NODE_RANK")
    assert acting(environ, asked=1) == Acting(rank=1, why="--rank")


def test_a_simulation_is_one_ranks_as_any_other_launch() -> None:
    environ = {**STEP, "NODE_RANK": "0", "IPADDRS": LISTED}
    assert acting(environ, simulate=True) == Acting(rank=0, why="NODE_RANK")
    assert acting(STEP, simulate=True) == Acting(rank=1, why="Slurm step 7.0")
    assert acting({}, simulate=True, asked=1) == Acting(rank=1, why="--rank")
    assert acting({**STEP, "NODE_RANK": "1"}, simulate=True, nodes=()) is None


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"NODE_RANK": "2"}, "NODE_RANK says rank 2, but the launch has 2 nodes: ranks are 0 to 1"),
        ({"NODE_RANK": "-1"}, "environment variable NODE_RANK: '-1' is no rank"),
        ({"NODE_RANK": "one"}, "environment variable NODE_RANK: 'one' is no rank"),
        ({"NODE_RANK": "1", "NNODES": "3"}, "environment variable NNODES says '3', but the list of nodes has 2"),
        ({"NODE_RANK": "1", "NODE0_ADDR": "10.0.0.2"}, "NODE0_ADDR says '10.0.0.2', but rank 0 is on '10.0.0.1'"),
        ({"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.2"}, "MASTER_ADDR says '10.0.0.2', but rank 0 is on '10.0.0.1'"),
        ({"NODE_RANK": "²"}, "environment variable NODE_RANK: '²' is no rank"),
        ({"NODE_RANK": "9" * 5000}, f"environment variable NODE_RANK: '{'9' * 40}' is no rank"),
        ({**STEP, "SLURM_PROCID": "x"}, "environment variable SLURM_PROCID: 'x' is no rank"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "x"}, "environment variable SLURM_STEP_NUM_TASKS: 'x' is no number of tasks"),
        ({**STEP, "SLURM_STEP_NUM_NODES": "²"}, "environment variable SLURM_STEP_NUM_NODES: '²' is no number of nodes"),
    ],
)
def test_ranks_and_first_nodes_that_do_not_fit_are_refused(environ: dict[str, str], reason: str) -> None:
    """Fault B37: rank, first address and node list disagreed, and the job hung."""
    with pytest.raises((UsageError, SpecError)) as error:
        acting({"IPADDRS": LISTED, **environ})
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"NNODES": "3"}, "environment variable NNODES says '3', but the list of nodes has 2"),
        ({"NODE0_ADDR": "10.0.0.2"}, "NODE0_ADDR says '10.0.0.2', but rank 0 is on '10.0.0.1'"),
        ({"MASTER_ADDR": "10.0.0.9"}, "MASTER_ADDR says '10.0.0.9', but rank 0 is on '10.0.0.1'"),
        ({"NNODES": "2", "NODE0_ADDR": "10.0.0.1", "MASTER_ADDR": "127.0.0.1"}, ""),
    ],
)
def test_a_plan_from_a_job_scripts_nodes_is_refused_where_its_variables_disagree(
    said: dict[str, str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault B37, before the nodes are held; nodes of the command line are the user's own word against the script's."""
    for name, text in {"IPADDRS": LISTED, **said}.items():
        monkeypatch.setenv(name, text)
    asked = ["plan", "--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro"]
    assert main(asked) == (3 if reason else 0)
    if reason:
        assert f"{reason} (environment contract IPADDRS): " in capsys.readouterr().err
    assert main([*asked, "--nodes", "10.0.0.8,10.0.0.9"]) == 0


def test_a_step_has_an_id_that_all_its_ranks_know() -> None:
    assert step_id(STEP) == "7.0"
    assert step_id({**STEP, "SLURM_RESTART_COUNT": "2"}) == "7.0.2"
    assert step_id({**STEP, "SLURM_STEP_ID": "4294967290"}) == "7.4294967290"
    assert step_id({"SLURM_JOB_ID": "7"}) == ""


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"])
def test_an_id_that_slurm_would_not_have_set_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"environment variable {name}: '../x' is no .*: Slurm sets it"):
        step_id({**STEP, name: "../x"})


def test_an_agent_s_rank_that_is_none_is_refused_by_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "²")
    assert main(["agent", "--plan", "p.json"]) == 2
    said = "invalid value for '--rank': '²' is no whole number (environment variable SLURM_PROCID)"
    assert f"{said}: see disagg-run agent --help" in capsys.readouterr().err
    assert main(["agent", "--plan", "p.json", "--rank", "x"]) == 2
    assert "SLURM_PROCID" not in capsys.readouterr().err


def test_an_empty_list_of_addresses_is_refused() -> None:
    """Fault B21: the look-up of addresses failed without a message."""
    with pytest.raises(SpecError, match="IPADDRS is empty beside NODE_RANK=1: the job script's look-up"):
        acting({"NODE_RANK": "1", "IPADDRS": ""}, nodes=())
    with pytest.raises(UsageError, match="--rank is given, but no nodes"):
        acting({}, nodes=(), asked=0)


def test_a_first_node_by_another_kind_of_name_is_not_compared() -> None:
    for given in ("n0", "10.0.0.1", "n0.cluster.example"):
        assert acting({"NODE_RANK": "0", "IPADDRS": LISTED, "NODE0_ADDR": given}) is not None


@pytest.mark.parametrize("name", names(*ENGINES))
def test_every_case_of_the_job_scripts_is_a_rank(name: str) -> None:
    environ = load(name).environ
    nodes = tuple(Node(address=address) for address in environ["IPADDRS"].split(","))
    for rank in range(len(nodes)):
        assert acting({**environ, "NODE_RANK": str(rank)}, nodes=nodes) == Acting(rank=rank, why="NODE_RANK")


# --- the dry run in place of the old dispatcher ------------------------------------------------------------------


@pytest.mark.parametrize("case", ["atom/dsv4_1p1d_tp8", "sglang/dsr1_fp8_1p2d_tp8", "vllm/minimax_m25_1p2d_ep8"])
def test_a_dry_run_in_the_job_scripts_environment_prints_the_same_plan_on_every_rank(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith(("DISAGG_RUN_", "SLURM_"))]:
        monkeypatch.delenv(name)
    for name, text in json.loads((DATA / f"{case}.json").read_text())["input"]["env"].items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("DRY_RUN", "1")
    printed = set()
    for rank in range(2):
        monkeypatch.setenv("NODE_RANK", str(rank))
        assert main([]) == 0
        captured = capsys.readouterr()
        assert captured.err == "disagg-run: nothing is started: the environment says DRY_RUN\n"
        printed.add(captured.out)
    assert main(["plan"]) == 0
    assert printed == {capsys.readouterr().out}


@pytest.mark.parametrize("name", names(*ENGINES))
def test_with_an_external_router_the_plan_is_the_same_without_it(name: str) -> None:
    case = load(name)
    refused = [entry for entry in table(name.partition("/")[0]).refused if entry.case == name]
    changes = {variable: text for entry in refused for variable, text in entry.instead.items()}
    with_router, without = case.plan(changes), case.plan({**changes, "DISAGG_RUN_ROUTER": "external"})
    assert set(with_router.process_names()) - set(without.process_names()) == {"router"}
    for process in without.process_names():
        assert without.process(process).argv == with_router.process(process).argv
        assert without.process(process).env == with_router.process(process).env

"""The bare form on every node of a job: when it acts as one rank, and that the ranks then meet and serve."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from disagg_run import LaunchSpec, SpecError, UsageError
from disagg_run.cli.main import main
from disagg_run.running.acting import Acting, acting_rank
from disagg_run.spec.model import Node
from disagg_run.testing.distributions import FakeDistribution
from tests.parity.case import DATA, ENGINES, load, names
from tests.parity.differences import table
from tests.running.plans import SERVER, addresses

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


def test_a_simulation_is_never_one_ranks() -> None:
    assert acting({**STEP, "NODE_RANK": "1", "IPADDRS": LISTED}, simulate=True) is None
    with pytest.raises(UsageError, match="--rank does not go with --simulate"):
        acting({}, simulate=True, asked=0)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"NODE_RANK": "2"}, "NODE_RANK says rank 2, but the launch has 2 nodes: ranks are 0 to 1"),
        ({"NODE_RANK": "-1"}, "environment variable NODE_RANK: '-1' is no rank"),
        ({"NODE_RANK": "one"}, "environment variable NODE_RANK: 'one' is no rank"),
        ({"NODE_RANK": "1", "NNODES": "3"}, "environment variable NNODES says '3', but the list of nodes has 2"),
        ({"NODE_RANK": "1", "NODE0_ADDR": "10.0.0.2"}, "NODE0_ADDR says '10.0.0.2', but rank 0 is on '10.0.0.1'"),
        ({"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.2"}, "MASTER_ADDR says '10.0.0.2', but rank 0 is on '10.0.0.1'"),
        ({**STEP, "SLURM_PROCID": "x"}, "environment variable SLURM_PROCID: 'x' is no rank"),
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


# --- ranks that are started on every node ------------------------------------------------------------------------

PLUGIN = """
import sys
from disagg_run import Command, Engine, Extension, Listener, ModelRow, Probe, flag, hookimpl

@hookimpl
def disagg_plugin():
    return Engine(name="tiny-disagg", summary="", models=(ModelRow(name="toy"),), versions=">=1",
                  default_version="1", default_connector="tiny-link")

@hookimpl
def disagg_readiness(ctx):
    port = 18000 if ctx.process.kind == "router" else 18010
    return [Listener(name="http", default_port=port, probe=Probe(kind="http", timeout_s=20, served_model="toy"))]

def _command(ctx, *flags):
    program = (sys.executable, "-S", {server!r})
    return [Command(program=program, flags=[flag("--port", ctx.ports["http"]), *flags])]

@hookimpl
def disagg_server_command(ctx):
    return _command(ctx)

@hookimpl
def disagg_router_command(ctx):
    heads = [f"http://{{head.address}}:{{head.ports['http']}}" for head in ctx.heads]
    return _command(ctx, flag("--forward", *heads))
"""
LINK = """
from disagg_run import Extension, hookimpl

@hookimpl
def disagg_plugin():
    return Extension(name="tiny-link", summary="", kind="connector", engines=("tiny-disagg",))
"""


class Job:
    """A job script's environment, and the processes that were started in it."""

    def __init__(self, directory: Path) -> None:
        plugins = {"tiny-disagg": PLUGIN.format(server=str(SERVER)), "tiny-link": LINK}
        fake = FakeDistribution(directory=directory / "plugins", name="tiny", plugins=plugins)
        fake.write()
        self.directory = directory
        self.nodes = addresses(2)
        inherited = {name: text for name, text in fake.environment().items() if not name.startswith("DISAGG_RUN_")}
        self.environ = {
            **inherited,
            "ENGINE": "tiny-disagg",
            "MODEL_NAME": "toy",
            "IPADDRS": ",".join(self.nodes),
            "DISAGG_RUN_TOKEN": "0123456789abcdef",
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "disagg_run", *arguments]
        process = subprocess.Popen(
            words,
            cwd=self.directory,
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


def test_ranks_that_are_started_one_on_each_node_meet_serve_and_end(job: Job) -> None:
    ids = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    ranks = [job.start("--smoke", "2", NODE_RANK=str(rank), **ids) for rank in range(2)]
    outs = [rank.communicate(timeout=90) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outs
    assert "rank 1" in outs[0][0]
    assert "plan    2 ranks" in outs[0][0]
    # Only rank 0 prints the plan; both have the run directory of their step.
    assert "plan    2 ranks" not in outs[1][0]
    (run_dir,) = (job.directory / "runs").iterdir()
    assert run_dir.name == "7.0-tiny-disagg"
    for rank in range(2):
        assert outs[rank][1].startswith(f"disagg-run: rank {rank} (NODE_RANK) in {run_dir}\n")
        assert json.loads((run_dir / f"result.rank{rank}.json").read_text())["exit_code"] == 0
    assert json.loads((run_dir / "plan.json").read_text())["bound"] is True
    assert (run_dir / "plan.rank1.json").read_text() == (run_dir / "plan.json").read_text()
    logs = {file.name for file in (run_dir / "logs").iterdir()}
    assert any("prefill-0" in name for name in logs)
    assert any("decode-0" in name for name in logs)


def test_a_rank_that_was_given_another_plan_is_refused(job: Job) -> None:
    with socket.create_server((job.nodes[0], 0)) as free:
        star = f"{job.nodes[0]}:{free.getsockname()[1]}"
    first = job.start("--rank", "0", "--star", star, "--run-dir", "a")
    second = job.start("--rank", "1", "--star", star, "--run-dir", "b", GPUS_PER_NODE="4")
    started = time.monotonic()
    outs = [process.communicate(timeout=60) for process in (first, second)]
    assert time.monotonic() - started < 40
    assert [first.returncode, second.returncode] == [10, 10], outs
    for _, err in outs:
        assert re.search(r"^\d\| disagg-run: error: .*rank 1 has the plan sha256:\w+, rank 0 has sha256:", err, re.M)
        assert "Traceback" not in err


def test_a_rank_whose_node_is_not_this_machine_is_refused(job: Job) -> None:
    out, err = job.start(NODE_RANK="1", IPADDRS="127.0.0.1,192.0.2.77").communicate(timeout=60)
    assert job.started[0].returncode == 10
    assert err == (
        "disagg-run: error: NODE_RANK says rank 1, which is on 192.0.2.77, but that is no address of this machine:"
        " list the nodes in the order of their ranks\n"
    )
    assert out == ""
    assert not (job.directory / "runs").exists()


def test_a_node_that_the_plan_does_not_need_ends_at_once_with_a_remark(job: Job) -> None:
    third = ",".join([*job.nodes, "127.0.0.1"])
    out, err = job.start(NODE_RANK="2", IPADDRS=third).communicate(timeout=60)
    assert job.started[0].returncode == 0
    assert (out, err) == ("", "disagg-run: rank 2 (NODE_RANK) has nothing to do: the plan needs 2 nodes\n")


def test_agents_of_several_ranks_need_a_secret_in_common(job: Job) -> None:
    _, err = job.start(NODE_RANK="1", DISAGG_RUN_TOKEN="").communicate(timeout=60)
    assert job.started[0].returncode == 2
    assert "the agents of a run need a secret in common: give each the same --token-file" in err

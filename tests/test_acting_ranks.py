"""Ranks that a job starts one on each node, each by the bare form: they meet, serve and end."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run.testing.distributions import FakeDistribution
from tests.running.plans import SERVER, addresses

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


@pytest.mark.parametrize("simulate", ["1", pytest.param("", marks=pytest.mark.real)])
def test_ranks_that_are_started_one_on_each_node_meet_serve_and_end(job: Job, simulate: str) -> None:
    ids = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "DISAGG_RUN_SIMULATE": simulate}
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

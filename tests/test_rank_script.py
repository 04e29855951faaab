"""A rank's script: order, waits, ends and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import PlanError
from disagg_run.planning.document import After, LaunchPlan, PlannedProcess, Ready
from disagg_run.render import render_shell, render_table, write_scripts
from tests.planned import TWO_RANKS, launch, names, process, values

#: Serves 200 on one port after a delay; leaves its pid, argv and environment in a file; can leave a child behind it.
SERVER = """
import http.server, json, os, subprocess, sys, time
name, directory, address, port, delay = sys.argv[1:6]
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
seen = {"pid": os.getpid(), "child": child.pid, "argv": sys.argv, "env": dict(os.environ), "at": time.time()}
with open(os.path.join(directory, name + ".tmp"), "w") as file:
    json.dump(seen, file)
os.rename(os.path.join(directory, name + ".tmp"), os.path.join(directory, name + ".json"))
time.sleep(float(delay))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200 if asked["model"] == "toy" else 400)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer((address, int(port)), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def server(tmp_path: Path, name: str, port: int, delay: float = 0.0, **fields: Any) -> PlannedProcess:
    argv = [sys.executable, "-I", "-c", SERVER, name, str(tmp_path), "127.0.0.1", str(port), str(delay)]
    ready = [Ready(kind="http", target=f"http://127.0.0.1:{port}/health", timeout_s=20)]
    return process(name, argv, **{"ports": {"http": port}, "ready": ready, **fields})


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def seen(tmp_path: Path, name: str) -> dict[str, Any]:
    file = tmp_path / f"{name}.json"
    until(file.exists, f"{name} has not started")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@attrs.frozen
class Script:
    """A rank's script that runs."""

    running: subprocess.Popen[str]

    @classmethod
    def run(cls, plan: LaunchPlan, tmp_path: Path, **env: str) -> Script:
        path = write_scripts(plan, tmp_path / "scripts")[0]
        return cls(
            subprocess.Popen(
                [path], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )

    def end(self) -> tuple[int, str]:
        """Exit code and what was said; it must end by itself."""
        try:
            _, said = self.running.communicate(timeout=40)
        finally:
            self.running.kill()
        return self.running.returncode, said


def test_scripts_are_written_for_each_rank_and_bash_parses_them(tmp_path: Path) -> None:
    paths = write_scripts(TWO_RANKS, tmp_path / "new" / "scripts")
    assert [path.name for path in paths] == ["rank-0.sh", "rank-1.sh"]
    for path in paths:
        assert path.stat().st_mode & 0o777 == 0o755
        subprocess.run(["bash", "-n", path], check=True)
        assert "eval" not in path.read_text()
    text = paths[0].read_text()
    assert f"# Rank 0 on n0 192.0.2.1, plan {TWO_RANKS.digest}" in text
    assert "# Meant for a container of toy:1.0: prefill-0" in text
    assert "# Not applied here, patches for prefill-0: toy-fix" in text
    assert "# Not checked here, preflight for prefill-0: model" in text
    assert "# router is to start when decode-0 is ready; that cannot be asked from here." in text
    with pytest.raises(PlanError, match="the plan has no rank 2: its ranks are 0 to 1"):
        render_shell(TWO_RANKS, 2)


@given(
    name=values.filter(bool),
    argv=st.lists(values, min_size=1, max_size=3),
    env=st.dictionaries(names, values, max_size=2),
)
def test_bash_parses_the_script_of_any_process(name: str, argv: list[str], env: dict[str, str]) -> None:
    script = render_shell(launch([process(name, argv, env=env)]), 0)
    done = subprocess.run(["bash", "-n"], input=os.fsencode(script), capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_rank_starts_in_order_with_argv_and_environment_and_a_death_ends_it_all(tmp_path: Path) -> None:
    port, router_port = free_port(), free_port()
    mark = tmp_path / "setup"
    plan = launch(
        [
            server(
                tmp_path,
                "router",
                router_port,
                kind="router",
                env={"TOY": "it's\n$HOME"},
                after=[After(process="prefill-0", until="ready")],
            ),
            server(tmp_path, "prefill-0", port, delay=0.7, after=[After(process="routes", until="ready")]),
            process(
                "routes",
                ["bash", "-c", f"sleep 0.3; touch {mark}"],
                kind="setup",
                ready=[Ready(kind="exit", target="", timeout_s=20)],
            ),
        ]
    )
    script = Script.run(plan, tmp_path)
    first = seen(tmp_path, "prefill-0")
    assert mark.stat().st_mtime <= first["at"]
    second = seen(tmp_path, "router")
    assert second["at"] >= first["at"] + 0.7
    assert second["env"]["TOY"] == "it's\n$HOME"
    assert second["argv"] == ["-c", *plan.process("router").argv[4:]]
    os.kill(first["pid"], signal.SIGKILL)
    code, said = script.end()
    assert code == 137
    assert "rank script: prefill-0 exited with 137" in said
    assert not any(alive(each[key]) for each in (first, second) for key in ("pid", "child"))


def test_a_server_that_ends_with_0_is_a_failure_too(tmp_path: Path) -> None:
    code, said = Script.run(launch([process(argv=["true"])]), tmp_path).end()
    assert code == 1
    assert "prefill-0 exited with 0" in said


def test_a_script_that_is_told_to_end_ends_its_own_groups_and_nothing_else(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        script = Script.run(launch([server(tmp_path, "prefill-0", free_port())]), tmp_path)
        started_one = seen(tmp_path, "prefill-0")
        assert os.getpgid(started_one["pid"]) == started_one["pid"]
        script.running.terminate()
        assert script.end()[0] == 143
        until(lambda: not alive(started_one["child"]), "a grandchild is left")
        assert not alive(started_one["pid"])
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.real
def test_the_workload_ends_the_run_with_its_own_code(tmp_path: Path) -> None:
    for wanted in (0, 7):
        here = tmp_path / str(wanted)
        here.mkdir()
        plan = launch(
            [
                server(here, "prefill-0", free_port()),
                process(
                    "bench",
                    ["sh", "-c", f"exit {wanted}"],
                    kind="workload",
                    after=[After(process="prefill-0", until="listening")],
                ),
            ],
            address="127.0.0.1",
        )
        assert Script.run(plan, here).end()[0] == wanted
        assert not alive(seen(here, "prefill-0")["pid"])


def test_a_failed_setup_and_a_gate_that_never_opens_end_the_script(tmp_path: Path) -> None:
    setup = process("routes", ["sh", "-c", "exit 3"], kind="setup", ready=[Ready(kind="exit", target="", timeout_s=20)])
    plan = launch([setup, server(tmp_path, "prefill-0", free_port(), after=[After(process="routes", until="ready")])])
    code, said = Script.run(plan, tmp_path).end()
    assert code == 3
    assert "routes ended with 3" in said
    assert not (tmp_path / "prefill-0.json").exists()
    pid = tmp_path / "pid"
    never = process(
        "prefill-0",
        ["sh", "-c", f"echo $$ > '{pid}'; exec sleep 60"],
        ready=[Ready(kind="tcp", target=f"127.0.0.1:{free_port()}", timeout_s=1.5)],
    )
    after = [After(process="prefill-0", until="ready")]
    code, said = Script.run(launch([never, process("router", ["true"], kind="router", after=after)]), tmp_path).end()
    assert code == 12
    assert "prefill-0 has not become ready within 2 s" in said
    assert not alive(int(pid.read_text()))


def test_other_ranks_are_waited_for_over_the_network(tmp_path: Path) -> None:
    port = free_port()
    generation = Ready(kind="generation", target=f"http://127.0.0.1:{port}/v1/completions", timeout_s=20)
    away = server(tmp_path, "decode-0", port, ready=[generation])
    after = [After(process="decode-0", until="ready")]
    workload = process("bench", ["true"], kind="workload", after=after)
    script = Script.run(launch([workload], [away]), tmp_path)
    other = subprocess.Popen(away.argv)
    try:
        assert script.end()[0] == 0
    finally:
        child = seen(tmp_path, "decode-0")["child"]
        other.kill()
        other.wait()
        os.kill(child, signal.SIGKILL)


def test_scripts_of_many_ranks_take_linear_time(tmp_path: Path) -> None:
    ranks = [[process(f"decode-{rank}", ["toy"], ports={"http": 8000})] for rank in range(300)]
    router = process(
        "router", kind="router", after=[After(process=f"decode-{rank}", until="listening") for rank in range(300)]
    )
    began = time.process_time()
    assert len(write_scripts(launch([*ranks[0], router], *ranks[1:]), tmp_path)) == 300
    render_table(launch(*ranks))
    assert time.process_time() - began < 3

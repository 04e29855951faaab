"""A plan as text: the table is readable, JSON and YAML read back, shell scripts start the very argv and environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_run.errors import PlanError
from disagg_run.planning.document import (
    After,
    Group,
    LaunchPlan,
    PlannedContainer,
    PlannedModel,
    PlannedProcess,
    RankPlan,
    Ready,
    Remark,
)
from disagg_run.records import Patch, Preflight
from disagg_run.render import (
    render_json,
    render_process_shell,
    render_shell,
    render_table,
    render_yaml,
    write_scripts,
)
from disagg_run.running.environment import process_environment
from disagg_run.spec.model import Node


def process(name: str = "prefill-0", argv: Iterable[str] = ("toy-server",), **fields: Any) -> PlannedProcess:
    return PlannedProcess(name=name, argv=argv, **{"kind": "server", **fields})


def launch(*ranks: Iterable[PlannedProcess | Group], address: str = "192.0.2.{}", **fields: Any) -> LaunchPlan:
    def group(item: PlannedProcess | Group) -> Group:
        return item if isinstance(item, Group) else Group(processes=[item])

    return LaunchPlan(
        engine="toy-disagg",
        engine_version="1.0",
        connector="toy-link",
        model=PlannedModel(name="toy-7b", path="/models/toy-7b", served_name="toy"),
        ranks=[
            RankPlan(
                rank=rank,
                node=Node(name=f"n{rank}", address=address.format(rank + 1)),
                groups=[group(item) for item in items],
            )
            for rank, items in enumerate(ranks)
        ],
        **{"bound": True, **fields},
    )


# --- table -------------------------------------------------------------------------------------------------------

TWO_RANKS = launch(
    [
        Group(
            container=PlannedContainer(image="toy:1.0"),
            patches=[Patch(id="toy-fix", why="it waits for ever", package=["toy"], file="toy/a.py", edits=[])],
            preflight=[Preflight(name="model", kind="path_exists", target="/models/toy-7b")],
            processes=[
                process(
                    role="prefill",
                    argv=["toy-server", "--config", '{"a": [1, 2]}', "--name", "two words"],
                    env={"TOY_HOST": "192.0.2.1", "TOY_PORT": "8010"},
                    env_prepend={"PATH": ("/opt/toy",)},
                    unset=["TOY_DEBUG"],
                    secrets=["TOY_TOKEN"],
                    gpus=range(8),
                    ports={"http": 8010, "handshake": 6301},
                    port_counts={"handshake": 8},
                    ready=[Ready(kind="http", target="http://192.0.2.1:8010/health", timeout_s=1800)],
                )
            ],
        ),
        process(
            "router",
            ["toy-router"],
            kind="router",
            after=[After(process="prefill-0", until="ready"), After(process="decode-0", until="ready")],
        ),
    ],
    [process("decode-0", role="decode", gpus=[0, 1, 4], ports={"http": 8020})],
    warnings=[Remark(message="port 8010 is odd", source="plugin toy-disagg")],
    waived=[Remark(message="block-size differs")],
    bound=False,
)


def test_the_table_shows_what_each_rank_runs() -> None:
    digest = TWO_RANKS.digest
    assert render_table(TWO_RANKS) == (
        f"""\
engine  toy-disagg 1.0, connector toy-link
model   toy-7b at /models/toy-7b, served as toy
plan    2 ranks, unbound: made without node names, cannot be run
digest  {digest}

rank 0  n0  192.0.2.1
  container toy:1.0
    prefill-0  server  gpus 0-7
      ports      http 8010, handshake 6301-6308
      ready      http http://192.0.2.1:8010/health within 1800 s
      command    toy-server --config '{{"a": [1, 2]}}' --name 'two words'
      variables  2 set, 1 extended, 1 unset, secret: TOY_TOKEN
    patch      toy-fix (not needed)
    preflight  model
  router  router
    after    prefill-0, decode-0 ready
    command  toy-router

rank 1  n1  192.0.2.2
  decode-0  server  gpus 0,1,4
    ports    http 8020
    command  toy-server

ports
  rank  process    listener   ports
  0     prefill-0  http       8010
  0     prefill-0  handshake  6301-6308
  1     decode-0   http       8020

warnings
  - port 8010 is odd (plugin toy-disagg)

waived
  - block-size differs
"""
    )


def test_the_table_keeps_one_line_for_one_value_and_cuts_long_commands() -> None:
    text = render_table(
        launch(
            [
                process(
                    argv=["toy", "line\none\x1b[31m", *["word"] * 100],
                    exec=["@python", "-m", "stand_in"],
                    ready=[Ready(kind="exit", target="", timeout_s=2.5)],
                    after=[After(process=f"p{index}", until="started") for index in range(10)],
                )
            ],
            simulated=True,
        )
    )
    assert "\x1b" not in text
    assert "command   toy 'line\\none\\x1b[31m' word" in text
    assert "stand-in  @python -m stand_in" in text
    assert "ready     ends with 0 within 2.5 s" in text
    assert "after     p0, p1, p2, p3, p4, p5, p6, p7 and 2 more started" in text
    assert max(map(len, text.splitlines())) < 140
    assert "simulated: the engines' stand-ins are started" in text


# --- JSON and YAML -----------------------------------------------------------------------------------------------

any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def test_json_is_the_document_and_reads_back() -> None:
    assert LaunchPlan.from_json(render_json(TWO_RANKS)) == TWO_RANKS
    assert json.loads(render_json(TWO_RANKS, indent=2)) == TWO_RANKS.to_dict()


@given(st.lists(any_text, min_size=1, max_size=4), st.dictionaries(any_text, any_text, max_size=3))
@example(["1e3", "0o17", "y", "on", "null", "~", "01", "1:30", "-", "- a", "a: b", "#", " x ", "\x85", "é", "🙂"], {})
def test_yaml_reads_back_as_the_same_data(argv: list[str], env: dict[str, str]) -> None:
    plan = launch([process(argv=argv, env=env)])
    text = render_yaml(plan)
    assert yaml.safe_load(text) == plan.to_dict()
    assert list(yaml.safe_load(text)) == list(plan.to_dict())


def test_yaml_is_in_blocks_without_references_and_quotes_what_other_readers_may_take_for_numbers() -> None:
    text = render_yaml(
        launch([process(argv=["toy", "1e3", "y"], env={"A": "0x10"}), process("router", ["toy", "1e3"])])
    )
    assert text.startswith("schema: 1\ndigest: sha256:")
    assert "- '1e3'\n" in text
    assert "- 'y'\n" in text
    assert "A: '0x10'" in text
    assert "&" not in text
    assert "{}" not in text.replace("env: {}", "").replace("ports: {}", "")


# --- one process in the shell ------------------------------------------------------------------------------------

#: What a child got from execve, without any interpretation.
DUMP = """
import json, sys
def given(name):
    return open(f"/proc/self/{name}", "rb").read().decode("latin-1").split("\\0")[:-1]
json.dump({"env": given("environ"), "argv": given("cmdline")}, sys.stdout)
"""
CHILD = (sys.executable, "-I", "-S", "-c", DUMP)
#: Bash's own: it sets them in every process that it starts.
OF_BASH = {"_", "SHLVL", "PWD", "OLDPWD"}


def started(script: str, inherited: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """argv and environment of the process that the script becomes."""
    done = subprocess.run(
        ["/bin/bash", "-c", script], env=dict(inherited), capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    words = [os.fsdecode(word.encode("latin-1")) for word in seen["argv"]]
    pairs = [os.fsdecode(pair.encode("latin-1")).partition("=") for pair in seen["env"]]
    return words, {name: value for name, _, value in pairs}


values = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("'\"$`\\\n\r\t !*?[]{}~#;&|<>()=:\udc80\udcff"),
    max_size=16,
)
#: Names that bash treats in a way of its own are among them.
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True) | st.sampled_from(
    ["UID", "SECONDS", "RANDOM", "IFS", "PWD", "SHLVL", "BASH_ENV", "BASHOPTS", "POSIXLY_CORRECT", "LC_ALL", "PATH"]
)
path_names = st.sampled_from(["TOY_PATH", "LD_LIBRARY_PATH", "A", "b2"])
elements = st.lists(values, max_size=3)


@pytest.mark.timeout(900)  # 2,000 pairs of real processes in CI
@given(
    words=st.lists(values, max_size=5),
    env=st.dictionaries(names | path_names, values, max_size=4),
    prepend=st.dictionaries(path_names, elements, max_size=2),
    append=st.dictionaries(path_names, elements, max_size=2),
    unset=st.lists(path_names, max_size=2, unique=True),
    inherited=st.dictionaries(path_names, values, max_size=4),
)
@example(words=['{"a": "it\'s $HOME"}', "-", "--", "\n"], env={}, prepend={}, append={}, unset=[], inherited={})
@example(words=[], env={}, prepend={}, append={"TOY_PATH": []}, unset=[], inherited={"TOY_PATH": ":"})
def test_any_argv_and_environment_reaches_a_real_child_unchanged(
    words: list[str],
    env: dict[str, str],
    prepend: dict[str, list[str]],
    append: dict[str, list[str]],
    unset: list[str],
    inherited: dict[str, str],
) -> None:
    planned = process(
        argv=[*CHILD, *words],
        env=env,
        env_prepend={name: tuple(parts) for name, parts in prepend.items()},
        env_append={name: tuple(parts) for name, parts in append.items()},
        unset=unset,
    )
    around = {"PATH": os.defpath, **inherited}
    argv, got = started(render_process_shell(planned), around)
    assert argv == list(planned.argv)
    wanted = process_environment(planned, around)
    mine = OF_BASH - set(env)
    assert {name: value for name, value in got.items() if name not in mine} == wanted


def test_extended_paths_never_have_an_empty_element() -> None:
    """Fault R19: LD_LIBRARY_PATH and PYTHONPATH ended in ``:``, which is the current directory."""
    planned = process(
        argv=CHILD, env_prepend={"A": ("/x", "/y"), "B": ("/x",)}, env_append={"A": ("/z",), "C": ("/z",), "D": ("/z",)}
    )
    around = {"PATH": os.defpath, "A": ":/old::/er:", "B": "", "D": "/old"}
    _, got = started(render_process_shell(planned), around)
    assert {name: got[name] for name in "ABCD"} == {"A": "/x:/y:/old:/er:/z", "B": "/x", "C": "/z", "D": "/old:/z"}


def test_a_program_with_an_equals_sign_in_its_name_is_started(tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text("#!/bin/sh\nexec " + sys.executable + ' -I -S "$@"\n')
    program.chmod(0o755)
    argv, got = started(render_process_shell(process(argv=[str(program), "-c", DUMP, "x"], env={"A": "1"})), os.environ)
    assert argv[-2:] == [DUMP, "x"]
    assert got["A"] == "1"


def test_a_missing_secret_stops_the_script_before_anything_starts_and_its_value_is_never_written() -> None:
    planned = process(argv=CHILD, secrets=["TOY_TOKEN"])
    script = render_process_shell(planned)
    for given_env in ({"PATH": os.defpath}, {"PATH": os.defpath, "TOY_TOKEN": ""}):
        done = subprocess.run(["bash", "-c", script], env=given_env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "TOY_TOKEN: prefill-0 needs it from the environment" in done.stderr
        assert done.stdout == ""
    assert started(script, {"PATH": os.defpath, "TOY_TOKEN": "s3cret"})[1]["TOY_TOKEN"] == "s3cret"
    assert "eval" not in script


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (process(argv=["toy", "a\0b"]), "is given a NUL character in 'a\\x00b'"),
        (process(env={"A": "\0"}), "is given a NUL character"),
        (process(env_prepend={"A": ("\0",)}), "is given a NUL character"),
        (process(argv=["\ud800"]), "which is no text"),
        (process(env={"A;rm": "1"}), "'A;rm' of prefill-0 is no variable name"),
        (process(secrets=["A}$(id)"]), "is no variable name"),
        (process(unset=["A\n"]), "is no variable name"),
        (process(argv=[]), "prefill-0 has no command"),
    ],
)
def test_what_no_process_can_be_given_is_refused(broken: PlannedProcess, words: str) -> None:
    for render in (render_process_shell, lambda each: render_shell(launch([each]), 0)):
        with pytest.raises(PlanError) as caught:
            render(broken)
        assert words in str(caught.value)


# --- a rank's script ---------------------------------------------------------------------------------------------

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
    never = server(
        tmp_path,
        "prefill-0",
        free_port(),
        ready=[Ready(kind="tcp", target=f"127.0.0.1:{free_port()}", timeout_s=0.5)],
    )
    after = [After(process="prefill-0", until="ready")]
    code, said = Script.run(launch([never, process("router", ["true"], kind="router", after=after)]), tmp_path).end()
    assert code == 12
    assert "prefill-0 has not become ready within 1 s" in said
    assert not alive(seen(tmp_path, "prefill-0")["pid"])


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

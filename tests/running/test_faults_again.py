"""Public fault reports of starting: what a step is given (B31), and a role that starts anew beside another (B85)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import attrs
import psutil
import pytest

from disagg_run.planning.document import Group, LaunchPlan, PlannedProcess, Ready
from disagg_run.records import Edit, Patch
from disagg_run.render import render_shell
from tests.planned import launch as document
from tests.running.launched import Launched, alive
from tests.running.plans import Launch, addresses, edges, plan, python, server

Starter = Callable[..., Launched]

#: What a shell, or two of them inside each other, would take apart.
NASTY = (
    "patch -p1 -d DIR < FILE || exit 1",
    'say "two words" and it\'s done; exit 0',
    "$(touch made-by-a-shell) `touch made-by-a-shell` $HOME ${HOME} ~ * ?",
    "two\nlines\n",
    "",
    " ",
    "\\ \t 'a' \"b\" \\\" \\'",
    '{"a": ["x || y", "<z>"]}',
    "-n",
    "--",
)
NOTE = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"


def step(address: str, notes: Path) -> tuple[PlannedProcess, PlannedProcess]:
    """A setup, and a server that says three lines and exits 0 before it is ready; both note what they are given."""
    setup = python("route", "setup", NOTE, ready=[Ready(kind="exit", target="", timeout_s=20)])
    setup = _with_words(setup, str(notes / "setup"), *NASTY)
    code = f"{NOTE}; print('loading weights\\npatch: malformed patch at line 7\\nbye', flush=True)"
    real = server("prefill-0", address)
    started = python("prefill-0", "server", code, ports=real.ports, ready=real.ready, after=edges("route"))
    return setup, _with_words(started, str(notes / "server"), *NASTY)


def _with_words(process: PlannedProcess, *words: str) -> PlannedProcess:
    return attrs.evolve(process, argv=(*process.argv, *words))


def noted(notes: Path) -> dict[str, list[str]]:
    return {path.name: json.loads(path.read_text()) for path in notes.iterdir()}


def test_B31_steps_get_the_very_words_of_the_plan_and_a_server_that_exits_0_too_soon_is_a_failure(
    launch: Starter, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (address,) = addresses(1)
    launched = launch(plan([(address, step(address, notes))]))
    assert launched.end() == 11
    assert noted(notes) == {"setup": [*NASTY], "server": [*NASTY]}
    assert launched.culprit()["message"] == "prefill-0 of rank 0 exited with code 0 before it was ready"
    assert "last lines of prefill-0, rank 0:\n  loading weights\n  patch: malformed patch at line 7\n  bye" in (
        launched.err.read_text()
    )
    assert not list(Path.cwd().glob("made-by-a-shell")) + list(launched.run_dir.rglob("made-by-a-shell"))


def test_B31_the_script_of_a_rank_gives_the_very_words_too(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (address,) = addresses(1)
    made = LaunchPlan.from_json(plan([(address, step(address, notes))]).to_json())
    script = tmp_path / "rank-0.sh"
    script.write_text(render_shell(made, 0))
    done = subprocess.run(
        ["bash", "-c", f"bash {script}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0, "the server ended before it was ready"
    assert noted(notes) == {"setup": [*NASTY], "server": [*NASTY]}
    assert not (tmp_path / "made-by-a-shell").exists()


def test_B31_a_patch_is_data_that_no_shell_reads() -> None:
    edits = [Edit(anchor=word or "x", replacement=word) for word in NASTY]
    patch = Patch(id="toy-fix", why='it\'s "needed"', package=["toy"], file="toy/a.py", edits=edits)
    made = document([Group(patches=[patch], processes=[python("prefill-0", "server", "")])])
    (read,) = LaunchPlan.from_json(made.to_json()).ranks[0].groups[0].patches
    assert read == patch
    assert "malformed" not in render_shell(made, 0)
    assert NASTY[0] not in render_shell(made, 0), "a script names patches and applies none"


# --- B85: a role that starts anew beside the other -----------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("struck", ["decode-0", "prefill-0"])
def test_B85_a_death_ends_the_whole_pair_set_and_nothing_is_started_again_in_place(
    launch: Starter, struck: str
) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    pids = {name: launched.pid(name) for name in launched.plan.process_names()}
    launched.kill(pids[struck])
    assert launched.end() == 11
    assert not [name for name, pid in pids.items() if alive(pid)], "peers must not outlive it with its old state"
    started = [event["process"] for rank in range(2) for event in launched.events(rank) if _is_start(event)]
    assert sorted(started) == sorted(pids), "each process was started once"


def _is_start(event: dict[str, object]) -> bool:
    return event["event"] == "process.started"


@pytest.mark.real
def test_B85_the_same_plan_started_again_is_a_new_run_that_must_pass_its_own_canary(launch: Starter) -> None:
    made = Launch().plan()
    runs = []
    for _ in range(2):
        launched = launch(made)
        launched.serving()
        events = [event["event"] for event in launched.events(0)]
        assert events.index("canary.passed") < events.index("run.serving")
        told = psutil.Process(launched.pid("decode-0")).environ()
        runs.append(
            (json.loads((launched.run_dir / "run.json").read_text())["run_id"], told["DISAGG_RUN_ID"], made.digest)
        )
        launched.kill(launched.pid("decode-0"))
        assert launched.end() == 11
    (first, first_told, first_digest), (second, second_told, second_digest) = runs
    assert (first, second) == (first_told, second_told)
    assert first != second
    assert first_digest == second_digest, "the plan is pure: what tells two runs apart is the run's"

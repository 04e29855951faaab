"""``disagg-run agent`` and ``status``, as a launcher on several nodes uses them: one agent started for each rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_run.errors import UsageError
from disagg_run.running.rundir import RunDir, write_result
from disagg_run.running.status import read_status, status_text
from disagg_run.running.token import read_token
from tests.running.launched import Agent, star, until
from tests.running.plans import Launch, addresses, plan, python


def test_agents_started_one_by_one_run_the_launch_with_a_run_directory_each(agent: Agent, tmp_path: Path) -> None:
    asked = Launch().plan()
    second = agent(asked, 1, *star(asked))
    first = agent(asked, 0, *star(asked), "--smoke", "2")
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, second.wait(20)) == (0, 0)
    assert "2 of 2 requests good" in out
    assert (tmp_path / "rank1" / "logs" / "decode-0.log").exists()
    assert read_status(tmp_path / "rank0")["state"] == "finished"


def test_every_rank_says_who_failed_where_no_launcher_does(agent: Agent) -> None:
    asked = Launch(words={"decode-0": ["--exit-after", 0.2, "--code", 5]}).plan()
    agents = [agent(asked, rank, *star(asked)) for rank in (0, 1)]
    for each in agents:
        _, err = each.communicate(timeout=60)
        assert each.returncode == 11, err
        assert "error: decode-0 of rank 1 exited with code 5" in err
        assert "leaving with 5" in err
        assert "Traceback" not in err


@pytest.mark.real
def test_a_rank_without_its_peers_ends_after_the_join_time_and_names_them(agent: Agent) -> None:
    asked = Launch().plan()
    first = agent(asked, 0, *star(asked), "--join-timeout", "1.5")
    _, err = first.communicate(timeout=60)
    assert first.returncode == 12
    assert "the agents of rank 1 have not joined within 1.5 s" in err


def test_a_terminated_agent_ends_its_processes_and_the_other_ranks(agent: Agent) -> None:
    asked = Launch().plan()
    first, second = [agent(asked, rank, *star(asked)) for rank in (0, 1)]
    assert first.stdout is not None
    until(lambda: "serving" in first.stdout.readline(), "serving")  # type: ignore[union-attr]
    second.send_signal(signal.SIGTERM)
    assert (first.wait(20), second.wait(20)) == (143, 143)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no JSON: "),
        ("[]", "is no JSON object"),
        ('{"facts": []}', "is no plan: give a file made by plan --format json"),
        ('{"schema": 2, "digest": "", "ranks": []}', "has schema 2, this disagg-run reads schema 1"),
        (None, "cannot be read: no such file or directory"),
    ],
)
def test_a_bad_plan_file_is_one_line_that_names_it(text: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    if text is not None:
        file.write_text(text)
    words = [sys.executable, "-m", "disagg_run", "agent", "--plan", str(file), "--rank", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 3
    assert f"the plan file {str(file)!r} {reason}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    address = addresses(1)[0]
    file.write_text(plan([(address, [python("p", "server", "")])]).to_json())
    for words, reason in ((["--rank", "3"], "the plan has no rank 3"), (["--rank", "0", "--star", "x"], "HOST:PORT")):
        command = [sys.executable, "-m", "disagg_run", "agent", "--plan", str(file), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 2
        assert reason in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


# --- the secret --------------------------------------------------------------------------------------------------


def test_a_token_comes_from_a_file_of_mode_0600_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    assert read_token(file, needed=True) == "0123456789abcdef"
    monkeypatch.setenv("DISAGG_RUN_TOKEN", "from the environment")
    assert read_token(None, needed=True) == "from the environment"
    monkeypatch.delenv("DISAGG_RUN_TOKEN")
    assert read_token(None, needed=False) == ""
    with pytest.raises(UsageError, match=r"need a secret in common: .*--token-file"):
        read_token(None, needed=True)


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        (0o644, "x" * 40, "mode 0644.*chmod 600"),
        (0o600, "short\n", "has 5 bytes: give 16 to 4096"),
        (0o600, "x" * 100_000, "has more than 4096 bytes: give 16 to 4096"),
        (0o600, "", "has 0 bytes"),
        (0o600, "\udcff" * 20, "is no UTF-8 text"),
    ],
)
def test_a_token_that_others_may_read_or_guess_is_refused(mode: int, text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(os.fsencode(text))
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"{file}.* {reason}") as caught:
        read_token(file, needed=True)
    assert not text or text.strip() not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none", needed=True)


@pytest.mark.parametrize(("text", "reason"), [("short", "has 5 bytes"), ("x" * 5000, "has more than 4096 bytes")])
def test_a_token_of_the_environment_is_held_to_the_same_bounds(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGG_RUN_TOKEN", text)
    for needed in (True, False):
        with pytest.raises(UsageError, match=f"the token in DISAGG_RUN_TOKEN {reason}: give 16 to 4096") as caught:
            read_token(None, needed=needed)
        assert text not in str(caught.value)


@pytest.mark.real
def test_ranks_with_different_tokens_are_told_so_on_both_sides(agent: Agent) -> None:
    asked = Launch().plan()
    first = agent(asked, 0, *star(asked), "--join-timeout", "3")
    second = agent(asked, 1, *star(asked), token="another secret of its own")
    _, err = second.communicate(timeout=30)
    assert second.returncode == 10
    assert "refuses rank 1: its token is not this run's: each rank needs one agent, all with the same" in err
    _, err = first.communicate(timeout=30)
    assert first.returncode == 12
    assert "have not joined within 3 s; one at 127." in err
    assert "was refused: its token is not this run's" in err
    assert "another secret" not in err


# --- status ------------------------------------------------------------------------------------------------------


def run_json(directory: Path, **fields: object) -> Path:
    data = {"state": "serving", "agents": {}, "processes": {}, "url": "http://a:1", "started": 0, **fields}
    (directory / "run.json").write_text(json.dumps(data))
    return directory


def test_a_run_whose_first_agent_is_gone_without_a_word_has_vanished(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    mark = {"pid": process.pid, "start": 1, "host": os.uname().nodename}
    assert read_status(run_json(tmp_path, agents={"0": mark}))["state"] == "vanished"
    assert read_status(run_json(tmp_path, agents={"0": {**mark, "host": "elsewhere"}}))["state"] == "serving"


def test_status_shows_each_process_and_as_json_all_that_is_known(tmp_path: Path) -> None:
    processes = {
        "prefill-0": {"rank": 0, "kind": "server", "stage": "ready", "pid": 41},
        "decode-0": {"rank": 1, "kind": "server", "stage": "planned"},
    }
    data = read_status(run_json(tmp_path, processes=processes))
    text = status_text(data)
    assert "serving at http://a:1" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["0", "prefill-0", "ready", "41"],
        ["1", "decode-0", "planned", "-"],
    ]
    assert json.loads(json.dumps(data))["processes"] == processes


def test_a_directory_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run directory"):
        read_status(tmp_path)
    write_result(RunDir(path=tmp_path), 0, None)
    assert read_status(tmp_path)["state"] == "finished"

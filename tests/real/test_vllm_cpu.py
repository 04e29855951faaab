"""A real vLLM behind the real vllm-router, planned and launched without a GPU: KV really moves, failures end all."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

import disagg_vllm
from disagg_run import LaunchPlan
from disagg_run.catalogue import Catalogue, read_catalogue
from disagg_run.catalogue_taking import differences, take_catalogue
from disagg_vllm.server import PROGRAM
from tests.real import vllm_cpu
from tests.real.vllm_launch import (
    PROMPTS,
    Installed,
    Starter,
    answers,
    ask,
    engine_core,
    opened,
    planned,
    process,
    prompt_tokens,
    serving,
    single_server,
)
from tests.running.launched import alive, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

#: Of the kernel; where the engine lets it choose, as between its own processes.
EPHEMERAL = range(32768, 61000)
#: From a kill to the end of all ranks; the launcher aims at two seconds, on two cores that others may use.
END_S = 20.0


def test_1p1d_answers_as_a_single_server_with_kv_from_prefill_opens_what_is_planned_and_ends_by_ctrl_c(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-1p1d.yaml", installed, tmp_path)
    with single_server(made, installed, tmp_path / "single.log") as url:
        expected = answers(url)
    assert len({each.token_ids for each in expected["plain"]}) > 15  # answers depend on their prompts
    assert expected["plain"] == expected["streamed"]

    launched = launch(made)
    url = serving(launched)
    assert answers(url) == expected

    decode, address = process(made, "decode-0")
    tokens = prompt_tokens(f"http://{address}:{decode.ports['http']}")
    assert tokens["external_kv_transfer"] >= 64 * 4 * len(PROMPTS)
    assert tokens["local_cache_hit"] == 0
    # What is left to decode is the unfinished block at a prompt's end, and the first tokens of short probes.
    assert tokens["local_compute"] < 33 * 4 * len(PROMPTS) + 200

    for name in ("prefill-0", "decode-0", "router"):
        planned_process, address = process(made, name)
        found = opened(launched.pid(name))
        ports = set(planned_process.ports.values())
        assert {port for _, port in found} >= ports
        unplanned = {(ip, port) for ip, port in found if port not in ports}
        assert all(port in EPHEMERAL and ip in (address, "127.0.0.1") for ip, port in unplanned), unplanned
        assert all(ip in (address, "127.0.0.1") for ip, _ in found)

    stopped = launched.kill(launched.process.pid, signal.SIGINT)
    assert launched.end(60) == 130
    assert time.monotonic() - stopped < END_S


def test_other_weights_in_prefill_change_the_answers_and_a_killed_engine_core_ends_the_run(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-1p1d.yaml", installed, tmp_path)
    mixed = _with_model(made, "prefill-0", installed.other)
    launched = launch(mixed)
    url = serving(launched)
    decode, address = process(made, "decode-0")
    own = f"http://{address}:{decode.ports['http']}"
    through = [ask(url, prompt) for prompt in PROMPTS[:5]]
    assert prompt_tokens(own)["external_kv_transfer"] >= 64 * 5
    assert [ask(own, prompt) for prompt in PROMPTS[:5]] == through  # it still finds the KV of prefill's weights
    shutil.rmtree(tmp_path / "kv")
    alone = [ask(own, prompt) for prompt in PROMPTS[:5]]
    assert not {each.token_ids for each in alone} & {each.token_ids for each in through}

    killed = launched.kill(engine_core(launched.pid("decode-0")))
    assert launched.end(90) == 11
    assert time.monotonic() - killed < END_S
    culprit = launched.culprit()
    assert culprit["process"] == "decode-0"
    assert culprit["message"].startswith("decode-0 of rank 1 says that it is broken: ")
    assert culprit["message"].endswith("/health answers 503")
    assert any("EngineCore" in line or "engine core" in line for line in culprit["lines"])


def test_the_killed_main_process_of_one_of_four_servers_ends_the_run(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-2p2d.yaml", installed, tmp_path)
    launched = launch(made)
    url = serving(launched)
    for prompt in PROMPTS:
        ask(url, prompt)
    for name in ("decode-0", "decode-1"):
        decode, address = process(made, name)
        assert prompt_tokens(f"http://{address}:{decode.ports['http']}")["external_kv_transfer"] >= 64
    core = engine_core(launched.pid("prefill-1"))
    killed = launched.kill(launched.pid("prefill-1"))
    assert launched.end(90) == 11
    assert time.monotonic() - killed < END_S
    assert launched.culprit()["message"] == "prefill-1 of rank 1 was killed by SIGKILL while it was needed"
    assert not alive(core)


def test_a_killed_router_ends_the_run(launch: Starter, installed: Installed, tmp_path: Path) -> None:
    launched = launch(planned("vllm-cpu-1p1d.yaml", installed, tmp_path))
    serving(launched)
    killed = launched.kill(launched.pid("router"))
    assert launched.end(90) == 11
    assert time.monotonic() - killed < END_S
    assert launched.culprit()["message"] == "router of rank 0 was killed by SIGKILL while it was needed"


def test_a_server_whose_port_is_taken_meanwhile_is_reported_with_its_own_last_lines(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-1p1d.yaml", installed, tmp_path)
    decode, address = process(made, "decode-0")
    with socket.socket() as taken:
        # Bound and not listening: preflight asks who listens, the engine finds that it cannot bind.
        taken.bind((address, decode.ports["http"]))
        launched = launch(made)
        until(lambda: launched.process.poll() is not None, "the launch to end", 300)
        assert launched.process.returncode == 11
    launched.check_nothing_left()
    shown = launched.err.read_text()
    assert "decode-0 of rank 1 exited with code 1 before it was ready" in shown
    assert "last lines of decode-0, rank 1:" in shown
    assert "Address already in use" in shown.split("last lines of decode-0")[1]


def test_a_port_that_somebody_listens_on_is_named_before_the_server_starts(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-1p1d.yaml", installed, tmp_path)
    decode, address = process(made, "decode-0")
    with socket.create_server((address, decode.ports["http"])):
        launched = launch(made)
        assert launched.process.wait(120) == 13
    assert f"port {decode.ports['http']} (http of decode-0) is held" in launched.text()
    assert not (launched.run_dir / "logs" / "decode-0.log").exists()


# --- what is installed -------------------------------------------------------------------------------------------


#: What the parser does to ``-O3`` before argparse sees it, which no question to argparse shows.
WRITTEN_BY_HAND = "~ --optimization-level: no name -O any more; no choice 0, 1, 2, 3 any more"


def test_the_shipped_catalogue_is_what_the_real_server_takes(installed: Installed) -> None:
    taken = Catalogue(take_catalogue(str(installed.bin / "python"), PROGRAM, distributions=("vllm",)))
    file = Path(str(disagg_vllm.__file__)).parent / "catalogues" / f"vllm-serve-{vllm_cpu.VLLM}.json"
    assert taken.version == vllm_cpu.VLLM
    assert differences(read_catalogue(file), taken) == (WRITTEN_BY_HAND,)


def test_a_plan_for_an_installed_engine_has_its_version_and_refuses_flags_that_it_does_not_know(
    installed: Installed,
) -> None:
    words = ["--engine", "vllm-disagg", "--model", "tiny", "--waive", "unknown-model"]
    words += ["--python", str(installed.bin / "python")]
    told = _disagg_run("explain", "engine_version", *words)
    assert told.returncode == 0, told.stderr
    assert "engine_version = 0.32.0" in told.stdout
    assert "--python: vllm 0.32.0+cpu is installed there" in told.stdout
    refused = _disagg_run("plan", *words, "--args", "--kv-cache-sizee 3")
    assert refused.returncode == 5
    assert "vllm serve 0.32.0 has no flag '--kv-cache-sizee'" in refused.stderr


def _disagg_run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "disagg_run", *words], capture_output=True, text=True, timeout=600, check=False
    )


def _with_model(made: LaunchPlan, name: str, model: Path) -> LaunchPlan:
    """The plan with another model's weights for one process."""
    before = made.process(name)
    after = attrs.evolve(before, argv=(*before.argv[:2], str(model), *before.argv[3:]))
    ranks = [
        attrs.evolve(
            rank,
            groups=[
                attrs.evolve(group, processes=[after if each is before else each for each in group.processes])
                for group in rank.groups
            ],
        )
        for rank in made.ranks
    ]
    return attrs.evolve(made, ranks=ranks)

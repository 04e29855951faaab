"""NIXL between real vLLM servers on processors: KV over TCP on loopback, as the plan's side channels say."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.real.vllm_launch import (
    PROMPTS,
    Installed,
    Starter,
    ask,
    planned,
    process,
    prompt_tokens,
    serving,
    single_server,
)

#: Each of the three idle workers burns a core, of which two may be all that there are: fewer requests than by files.
ASKED = PROMPTS[:8]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_nixl_moves_the_kv_and_answers_are_a_single_servers(
    launch: Starter, installed: Installed, tmp_path: Path
) -> None:
    made = planned("vllm-cpu-1p1d.yaml", installed, tmp_path, connector="vllm-nixl")
    with single_server(made, installed, tmp_path / "single.log") as url:
        expected = [ask(url, prompt, stream=stream) for stream in (False, True) for prompt in ASKED]
    launched = launch(made)
    url = serving(launched)
    assert [ask(url, prompt, stream=stream) for stream in (False, True) for prompt in ASKED] == expected
    decode, address = process(made, "decode-0")
    tokens = prompt_tokens(f"http://{address}:{decode.ports['http']}")
    # The second time a prompt is found in decode's own cache.
    assert tokens["external_kv_transfer"] >= 64 * len(ASKED)
    assert tokens["local_cache_hit"] >= 64 * len(ASKED)
    launched.kill(launched.process.pid, signal.SIGINT)
    assert launched.end(60) == 130

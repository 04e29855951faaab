"""The MoRI-IO patches: waits for a peer's handshake, as functions of the true patched files, with imports stubbed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.real.moriio.patched import NAMES, PATCHED, Timed, until
from tests.real.stubbed import loaded
from tests.real.vllm_sources import vllm_tree

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def worker(vllm: SimpleNamespace, *, producer: bool) -> Any:
    """A connector worker whose handshakes never end by themselves."""
    made = object.__new__(vllm.connector.MoRIIOConnectorWorker)
    made.is_producer = producer
    made.mode = vllm.common.MoRIIOMode.WRITE if producer else vllm.common.MoRIIOMode.READ
    made._remote_agents = {}
    made._handshake_lock = threading.RLock()
    made._ready_requests = queue.Queue()
    made.write_ready_flags, made.load_ready_flag = {}, {}
    made._reqs_to_send = {}
    made.moriio_wrapper = MagicMock()
    made.moved = []
    made._background_moriio_handshake = lambda *args: None
    made._write_blocks_for_req = lambda *args: made.moved.append(args)
    made._read_blocks_for_req = lambda *args: made.moved.append(args)
    return made


def metadata(vllm: SimpleNamespace, requests: str, *names: str) -> Any:
    """Connector metadata with one request for each name, all of one peer."""
    made = vllm.common.MoRIIOConnectorMetadata()
    meta = SimpleNamespace(remote_host="10.0.0.2", remote_handshake_port=6301, remote_engine_id=None)
    getattr(made, requests).update(dict.fromkeys(names, meta))
    made.reqs_to_send, made.transfer_id_to_request_id = {}, {}
    return made


def test_save_kv_layer_gives_up_a_peer_in_the_bounded_time_and_does_not_spin(
    vllm: SimpleNamespace, messages: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "1")
    made, meta = worker(vllm, producer=True), metadata(vllm, "reqs_to_save", "r1")
    first = Timed(lambda: made.save_kv_layer(meta, "layer0", None, None))
    assert 1 <= first.seconds < 10
    assert first.cpu_seconds < first.seconds / 2
    # The bound counts once for all layers of a peer that is gone, and again later.
    rest = Timed(lambda: [made.save_kv_layer(meta, f"layer{number}", None, None) for number in range(1, 61)])
    assert rest.seconds < 1
    (message,) = messages()
    assert "moriio-save-kv-timeout: the handshake with 10.0.0.2:6301 has not ended in 1 s" in message
    assert "DISAGG_MORIIO_TRANSFER_TIMEOUT_S" in message
    assert made.moved == []
    until(lambda: Timed(lambda: made.save_kv_layer(meta, "layer0", None, None)).seconds >= 1)
    assert len(messages()) == 2


def test_save_kv_layer_returns_at_once_without_a_peer(vllm: SimpleNamespace, patient: None) -> None:
    made = worker(vllm, producer=True)
    assert Timed(lambda: made.save_kv_layer(metadata(vllm, "reqs_to_save"), "layer0", None, None)).seconds < 10


def test_save_kv_layer_writes_as_soon_as_the_handshake_ends(vllm: SimpleNamespace, patient: None) -> None:
    made, meta = worker(vllm, producer=True), metadata(vllm, "reqs_to_save", "r1")

    def shaken() -> None:
        made._ready_requests.put(("r1", meta.reqs_to_save["r1"]))
        made.write_ready_flags["10.0.0.2:6301"] = True

    made._background_moriio_handshake = lambda *args: threading.Timer(0.1, shaken).start()
    took = Timed(lambda: made.save_kv_layer(meta, "layer0", "kv", None))
    assert 0.09 <= took.seconds < 10
    assert made.moved == [("r1", meta.reqs_to_save["r1"], "layer0", "kv")]
    made._remote_agents["10.0.0.2:6301_dp0"] = {"agent"}
    made.save_kv_layer(meta, "layer1", "kv", None)
    assert [args[0] for args in made.moved] == ["r1", "r1"]


def test_start_load_kv_gives_up_a_peer_in_the_bounded_time_and_does_not_spin(
    vllm: SimpleNamespace, messages: Callable[[], list[str]]
) -> None:
    made, meta = worker(vllm, producer=False), metadata(vllm, "reqs_to_recv", "r1", "r2")
    meta.reqs_to_send = {"s": 1.0}
    took = Timed(lambda: made.start_load_kv(meta))
    assert 0.3 <= took.seconds < 10
    assert took.cpu_seconds < took.seconds / 2
    (message,) = messages()
    assert "moriio-load-kv-timeout: the handshake with 10.0.0.2:6301 has not ended in 0.3 s" in message
    assert "['r1', 'r2']" in message
    assert made._reqs_to_send == {"s": 1.0}


def test_start_load_kv_reads_as_soon_as_the_handshake_ends(vllm: SimpleNamespace, patient: None) -> None:
    made, meta = worker(vllm, producer=False), metadata(vllm, "reqs_to_recv", "r1")

    def shaken() -> None:
        made._ready_requests.put(("r1", meta.reqs_to_recv["r1"]))
        made.load_ready_flag["10.0.0.2:6301"] = True

    made._background_moriio_handshake = lambda *args: threading.Timer(0.1, shaken).start()
    assert 0.09 <= Timed(lambda: made.start_load_kv(meta)).seconds < 10
    assert made.moved == [("r1", meta.reqs_to_recv["r1"])]
    assert Timed(lambda: made.start_load_kv(metadata(vllm, "reqs_to_recv"))).seconds < 10


def test_the_patched_files_are_what_is_recorded(vllm: SimpleNamespace) -> None:
    assert Path(vllm.scheduler.__file__).is_relative_to(vllm.tree)
    assert "disagg-run" in Path(vllm.scheduler.__file__).read_text()


@pytest.mark.parametrize("version", [PATCHED[0], PATCHED[-1]])
def test_without_the_patch_the_same_wait_goes_on_and_spins(version: str) -> None:
    with loaded(vllm_tree(version), *NAMES[:3]) as (common, _, connector):
        unpatched = SimpleNamespace(common=common, connector=connector)
        made, meta = worker(unpatched, producer=True), metadata(unpatched, "reqs_to_save", "r1")
        thread = threading.Thread(target=made.save_kv_layer, args=(meta, "layer0", None, None), daemon=True)
        cpu = time.process_time()
        thread.start()
        until(lambda: time.process_time() - cpu > 0.6, 60)  # a wait that sleeps takes a hundredth of it
        assert thread.is_alive()
        made.write_ready_flags["10.0.0.2:6301"] = True
        thread.join(5)
        assert not thread.is_alive()

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

from tests.real.moriio.patched import NAMES, PATCHED, Clock, until
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


@pytest.fixture
def clock(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(vllm.connector, monkeypatch)


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "1")


def after(seconds: float) -> Any:
    """So many seconds and two looks at most, each of which ends a sleep."""
    return pytest.approx(seconds + 0.0005, abs=0.0025)


def assert_it_slept_shortly(clock: Clock) -> None:
    """Neither a spin nor a sleep in which a handshake that ends would be late."""
    assert clock.slept
    assert 0.0005 <= min(clock.slept) <= max(clock.slept) <= 0.01


def end_handshake(made: Any, meta: Any, request: str) -> None:
    """What the background handshake does when it ends."""
    one = {**meta.reqs_to_save, **meta.reqs_to_recv}[request]
    made._ready_requests.put((request, one))
    made.load_ready_flag[one.remote_engine_id] = made.write_ready_flags[one.remote_engine_id] = True


def test_save_kv_layer_gives_up_a_peer_after_the_bound_and_does_not_spin(
    vllm: SimpleNamespace, messages: Callable[[], list[str]], clock: Clock, one_second: None
) -> None:
    made, meta = worker(vllm, producer=True), metadata(vllm, "reqs_to_save", "r1")
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", None, None)) == after(1)
    assert_it_slept_shortly(clock)
    # The bound counts once for all layers of a peer that is gone, and again later.
    for number in range(1, 61):
        assert clock.seconds_of(lambda layer=number: made.save_kv_layer(meta, f"layer{layer}", None, None)) == 0
    (message,) = messages()
    assert "moriio-save-kv-timeout: the handshake with 10.0.0.2:6301 has not ended in 1 s" in message
    assert "DISAGG_MORIIO_TRANSFER_TIMEOUT_S" in message
    assert made.moved == []
    clock.turn(0.9)
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", None, None)) == 0
    clock.turn(0.2)
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", None, None)) == after(1)
    assert len(messages()) == 2


def test_save_kv_layer_returns_at_once_without_a_peer(vllm: SimpleNamespace, clock: Clock, patient: None) -> None:
    made = worker(vllm, producer=True)
    assert clock.seconds_of(lambda: made.save_kv_layer(metadata(vllm, "reqs_to_save"), "layer0", None, None)) == 0


def test_save_kv_layer_writes_as_soon_as_the_handshake_ends(vllm: SimpleNamespace, clock: Clock, patient: None) -> None:
    made, meta = worker(vllm, producer=True), metadata(vllm, "reqs_to_save", "r1")
    clock.after(0.1, lambda: end_handshake(made, meta, "r1"))
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", "kv", None)) == after(0.1)
    assert made.moved == [("r1", meta.reqs_to_save["r1"], "layer0", "kv")]
    made._remote_agents["10.0.0.2:6301_dp0"] = {"agent"}
    made.save_kv_layer(meta, "layer1", "kv", None)
    assert [args[0] for args in made.moved] == ["r1", "r1"]


def test_a_later_handshake_of_the_same_decode_gets_the_whole_bound(
    vllm: SimpleNamespace, messages: Callable[[], list[str]], clock: Clock, one_second: None
) -> None:
    made, meta = worker(vllm, producer=True), metadata(vllm, "reqs_to_save", "r1")
    clock.after(0.5, lambda: end_handshake(made, meta, "r1"))
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", "kv", None)) == after(0.5)
    made.write_ready_flags.clear()
    clock.turn(0.8)  # the first handshake would have been given up meanwhile
    assert clock.seconds_of(lambda: made.save_kv_layer(meta, "layer0", "kv", None)) == after(1)
    assert len(messages()) == 1


def test_a_handshake_that_ended_with_another_peer_moves_nothing_for_this_one(
    vllm: SimpleNamespace, clock: Clock, patient: None
) -> None:
    for producer, requests, call in (
        (True, "reqs_to_save", lambda made, meta: made.save_kv_layer(meta, "layer0", "kv", None)),
        (False, "reqs_to_recv", lambda made, meta: made.start_load_kv(meta)),
    ):
        made, meta = worker(vllm, producer=producer), metadata(vllm, requests, "r1")
        clock.after(0.1, lambda made=made: made._ready_requests.put(("of another", None)))
        assert clock.seconds_of(lambda call=call, made=made, meta=meta: call(made, meta)) == after(0.1)
        assert made.moved == []
        assert made._ready_requests.get_nowait() == ("of another", None)


def test_start_load_kv_gives_up_a_peer_after_the_bound_and_does_not_spin(
    vllm: SimpleNamespace, messages: Callable[[], list[str]], clock: Clock
) -> None:
    made, meta = worker(vllm, producer=False), metadata(vllm, "reqs_to_recv", "r1", "r2")
    meta.reqs_to_send = {"s": 1.0}
    assert clock.seconds_of(lambda: made.start_load_kv(meta)) == after(0.3)
    assert_it_slept_shortly(clock)
    (message,) = messages()
    assert "moriio-load-kv-timeout: the handshake with 10.0.0.2:6301 has not ended in 0.3 s" in message
    assert "['r1', 'r2']" in message
    assert made._reqs_to_send == {"s": 1.0}
    assert clock.seconds_of(lambda: made.start_load_kv(meta)) == 0
    clock.turn(0.4)
    assert clock.seconds_of(lambda: made.start_load_kv(meta)) == after(0.3)
    assert len(messages()) == 2


def test_start_load_kv_reads_as_soon_as_the_handshake_ends_and_a_later_one_gets_the_whole_bound(
    vllm: SimpleNamespace, clock: Clock, one_second: None
) -> None:
    made, meta = worker(vllm, producer=False), metadata(vllm, "reqs_to_recv", "r1")
    clock.after(0.5, lambda: end_handshake(made, meta, "r1"))
    assert clock.seconds_of(lambda: made.start_load_kv(meta)) == after(0.5)
    assert made.moved == [("r1", meta.reqs_to_recv["r1"])]
    assert clock.seconds_of(lambda: made.start_load_kv(metadata(vllm, "reqs_to_recv"))) == 0
    made.load_ready_flag.clear()
    clock.turn(0.8)
    assert clock.seconds_of(lambda: made.start_load_kv(meta)) == after(1)


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

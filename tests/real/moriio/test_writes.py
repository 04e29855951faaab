"""The MoRI-IO patches: transfers and writes that fail, hang or wait for a peer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.real.moriio.patched import Clock, Timed, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


class Status:
    """A transfer as mori reports it; ``Wait`` would never return."""

    def __init__(self, after: float | None = 0.0, *, fails: bool = False) -> None:
        self.at = None if after is None else time.monotonic() + after
        self.fails = fails

    def _over(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def Succeeded(self) -> bool:
        return self._over() and not self.fails

    def Failed(self) -> bool:
        return self._over() and self.fails

    def Message(self) -> str:
        return "ibv_post_send failed"

    def Code(self) -> int:
        return 12

    def Wait(self) -> None:
        raise AssertionError("Wait has no bound")


@pytest.fixture
def clock(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(vllm.engine, monkeypatch)


def waiting(vllm: SimpleNamespace, *statuses: Any) -> Any:
    wrapper = vllm.engine.MoRIIOWrapper()
    wrapper.transfer_status.extend(statuses)
    return wrapper


def test_a_transfer_that_never_completes_raises_after_the_bound(
    vllm: SimpleNamespace, messages: Callable[[], list[str]], clock: Clock
) -> None:
    wrapper = waiting(vllm, Status(), Status(None), Status(None))

    def wait() -> None:
        with pytest.raises(vllm.common.TransferError, match=r"not complete after 0\.3 s") as refusal:
            wrapper.waiting_for_transfer_complete()
        assert str(refusal.value).count("not complete") == 2

    assert clock.seconds_of(wait) == pytest.approx(0.3, abs=0.0025)
    assert 0.0005 <= min(clock.slept) <= max(clock.slept) <= 0.01
    assert "moriio-transfer-timeout: 2 transfers failed" in messages()[0]
    assert "DISAGG_MORIIO_TRANSFER_TIMEOUT_S" in messages()[0]
    wrapper.waiting_for_transfer_complete()  # nothing is left to wait for


def test_transfers_that_complete_are_waited_for_no_longer_than_they_take(vllm: SimpleNamespace, patient: None) -> None:
    took = Timed(waiting(vllm, Status(), Status(0.1)).waiting_for_transfer_complete)
    assert 0.09 <= took.seconds < 10


def test_a_failed_transfer_raises_at_once_with_what_mori_says(vllm: SimpleNamespace) -> None:
    wrapper = waiting(vllm, Status(fails=True))
    with pytest.raises(vllm.common.TransferError, match=r"ibv_post_send failed \(code 12\)"):
        wrapper.waiting_for_transfer_complete()


def test_builds_of_mori_that_cannot_tell_a_failure_are_bounded_too(vllm: SimpleNamespace) -> None:
    status = SimpleNamespace(Succeeded=lambda: False)
    with pytest.raises(vllm.common.TransferError, match="not complete"):
        waiting(vllm, status).waiting_for_transfer_complete()


class Writer:
    """The writer of a prefill worker with two layers, its thread running."""

    def __init__(self, vllm: SimpleNamespace) -> None:
        self.vllm = vllm
        self.sent: list[str] = []
        self.wrapper = vllm.engine.MoRIIOWrapper()
        self.wrapper.local_memory_registered = True
        self.wrapper.moriio_engine = MagicMock()
        self.wrapper.send_notify = lambda request, *address: self.sent.append(request)
        self.status: Callable[[], Any] = Status

        class Worker:
            moriio_wrapper = self.wrapper
            num_layers, tp_rank = 2, 0
            layer_name_to_local_kv_cache_metadata = {"layer0": 0, "layer1": 0}  # noqa: RUF012

            def get_engine_name_with_dp(self, name: str, rank: int) -> str:
                return name

            def _get_built_session(inner, name: str) -> Any:
                session = SimpleNamespace(batch_write=lambda *args: self.status())
                return [session, session], None

            def _compute_block_transfer_offsets(self, *args: Any) -> Any:
                return [0], [0], [1]

        self.worker = Worker()
        self.writer = vllm.engine.MoRIIOWriter(self.worker)

    def task(self, request: str, layer: int, *, fails: bool = False) -> None:
        """Schedule a write; ``fails``: its event does, as after a device error."""
        event = MagicMock()
        if fails:
            event.synchronize.side_effect = RuntimeError("HIP error")
        fields: dict[str, Any] = {
            "request_id": request,
            "dst_engine_id": "e",
            "local_block_ids": [1],
            "remote_block_ids_hint": None,
        }
        fields |= {"layer_name": f"layer{layer}", "event": event, "remote_notify_port": 1, "remote_ip": "10.0.0.2"}
        if "transfer_id" in self.vllm.common.WriteTask.__dataclass_fields__:
            fields["transfer_id"] = f"tx-{request}"
        self.writer.schedule_write(self.vllm.common.WriteTask(**fields))

    def allocate(self, request: str) -> None:
        """Decode has named its blocks."""
        by_transfer = "transfer_id" in self.vllm.common.WriteTask.__dataclass_fields__
        key = f"tx-{request}" if by_transfer else request
        self.wrapper.done_remote_allocate_req_dict[key] = self.vllm.common.RemoteAllocInfo(block_ids=[1])

    def send(self, request: str, **fails: bool) -> None:
        self.allocate(request)
        self.task(request, 0, **fails)
        self.task(request, 1)

    def done(self) -> list[str]:
        return list(self.wrapper.done_req_ids)


def test_a_failed_write_ends_its_request_once_and_leaves_the_writer_thread_alive(
    vllm: SimpleNamespace, messages: Callable[[], list[str]]
) -> None:
    writer = Writer(vllm)
    writer.send("bad", fails=True)
    writer.send("good")
    until(lambda: len(writer.done()) == 2)
    assert sorted(writer.done()) == ["bad", "good"]
    assert len(writer.sent) == 1
    assert "moriio-transfer-timeout: writing layer layer0 of request bad failed, the request is given up" in messages()
    assert writer.wrapper.done_remote_allocate_req_dict == {}
    writer.send("after")
    until(lambda: "after" in writer.done())
    assert writer.done().count("bad") == 1


class Guarded(list[str]):
    """The finished requests, which note at each addition whether their lock was held."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock, self.held = lock, dict[str, bool]()

    def append(self, request: str) -> None:
        self.held[request] = self.lock.locked()
        super().append(request)


def test_a_request_that_is_given_up_is_reported_under_the_lock_of_the_finished_ones(vllm: SimpleNamespace) -> None:
    writer = Writer(vllm)
    finished = writer.wrapper.done_req_ids = Guarded(writer.wrapper.lock)
    writer.send("bad", fails=True)
    writer.send("good")
    until(lambda: len(writer.done()) == 2)
    assert finished.held == {"bad": True, "good": True}


def test_a_request_stays_given_up_for_an_hour_however_many_others_are(vllm: SimpleNamespace, clock: Clock) -> None:
    writer = Writer(vllm)

    def give_up(request: str) -> None:
        writer.allocate(request)
        writer.task(request, 0, fails=True)
        until(lambda: request in writer.done())

    give_up("first")
    give_up("second")
    clock.turn(3590)
    give_up("third")
    writer.send("first")  # layers that come late
    writer.send("good")  # tasks are taken in turn: those of the first are over when this one is
    until(lambda: "good" in writer.done())
    assert writer.done().count("first") == 1
    assert len(writer.sent) == 1
    clock.turn(20)
    give_up("fourth")
    writer.send("first")  # another request, whose id is the same
    until(lambda: writer.done().count("first") == 2)
    assert len(writer.sent) == 2


def test_a_transfer_that_hangs_ends_its_request_and_leaves_the_writer_thread_alive(vllm: SimpleNamespace) -> None:
    writer = Writer(vllm)
    writer.status = lambda: Status(None)
    writer.send("hangs")
    until(lambda: writer.done() == ["hangs"])
    writer.status = Status
    writer.send("good")
    until(lambda: writer.done() == ["hangs", "good"])
    assert len(writer.sent) == 1


def test_writes_whose_peer_names_no_blocks_expire_once_a_request(
    vllm: SimpleNamespace, messages: Callable[[], list[str]]
) -> None:
    writer = Writer(vllm)
    started = time.monotonic()
    writer.task("lost", 0)
    writer.task("lost", 1)
    writer.task("late", 0)
    writer.task("late", 1)
    until(lambda: writer.writer._deferred_tasks)
    writer.allocate("late")
    until(lambda: "lost" in writer.done())
    assert time.monotonic() - started >= 0.4
    until(lambda: not writer.writer._deferred_tasks)
    assert sorted(writer.done()) == ["late", "lost"]
    expired = [message for message in messages() if "decode has named no blocks for request lost in 0.4 s" in message]
    assert len(expired) == 1
    assert "DISAGG_MORIIO_DEFER_TIMEOUT_S" in expired[0]

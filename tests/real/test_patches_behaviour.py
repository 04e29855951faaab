"""What the MoRI-IO patches do: functions of the true patched files, run with their imports stubbed."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from disagg_run.patching import apply_patches
from disagg_vllm.patches_moriio import offered
from tests.real.stubbed import loaded
from tests.real.vllm_sources import VLLM_RELEASES, copy_tree, vllm_tree

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PATCHED = VLLM_RELEASES[: VLLM_RELEASES.index("0.23.0")]
MORIIO = "vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_"
NAMES = (
    MORIIO + "common",
    MORIIO + "engine",
    MORIIO + "connector",
    "vllm.v1.request",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
)


@pytest.fixture(scope="module", params=PATCHED)
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The patched modules of one release."""
    tree = copy_tree(vllm_tree(request.param), tmp_path_factory.mktemp("vllm") / request.param)
    states = apply_patches([patch for patch in offered() if "moriio" in patch.sets], target=tree)
    assert {state.state for state in states} == {"applied"}
    with loaded(tree, *NAMES) as modules:
        names = ("common", "engine", "connector", "request", "scheduler", "core")
        yield SimpleNamespace(version=request.param, tree=tree, **dict(zip(names, modules, strict=True)))


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "0.3")
    monkeypatch.setenv("DISAGG_MORIIO_DEFER_TIMEOUT_S", "0.4")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that no test waits for, where something must happen long before."""
    monkeypatch.setenv("DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "30")


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Timed:
    """Seconds and processor seconds of a call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        clock, cpu = time.monotonic(), time.process_time()
        self.result = call()
        self.seconds, self.cpu_seconds = time.monotonic() - clock, time.process_time() - cpu


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# --- (1) and (3): waiting for a peer's handshake ------------------------------------------------------------------


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


# --- (2): transfers and the writer thread -------------------------------------------------------------------------


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


def waiting(vllm: SimpleNamespace, *statuses: Any) -> Any:
    wrapper = vllm.engine.MoRIIOWrapper()
    wrapper.transfer_status.extend(statuses)
    return wrapper


def test_a_transfer_that_never_completes_raises_after_the_bound(
    vllm: SimpleNamespace, messages: Callable[[], list[str]]
) -> None:
    wrapper = waiting(vllm, Status(), Status(None), Status(None))

    def wait() -> None:
        with pytest.raises(vllm.common.TransferError, match=r"not complete after 0\.3 s") as refusal:
            wrapper.waiting_for_transfer_complete()
        assert str(refusal.value).count("not complete") == 2

    took = Timed(wait)
    assert 0.3 <= took.seconds < 10
    assert took.cpu_seconds < took.seconds / 2
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


# --- (4) and (5): the scheduler -----------------------------------------------------------------------------------


class Blocks:
    """The KV cache manager, which knows whose blocks were freed."""

    def __init__(self) -> None:
        self.freed: list[str] = []

    def free(self, request: Any) -> None:
        self.freed.append(request.request_id)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return ([1, 2],)

    def remove_skipped_blocks(self, **known: Any) -> None: ...

    def take_events(self) -> None: ...


class Connector:
    """A connector that keeps the blocks of every finished request."""

    def request_finished(self, request: Any, blocks: list[int]) -> tuple[bool, None]:
        return True, None

    def update_connector_output(self, output: Any) -> None: ...

    def take_events(self) -> tuple[()]:
        return ()


def scheduler(vllm: SimpleNamespace, *, connector: str = "MoRIIOConnector", producer: bool = True) -> Any:
    """A scheduler made by its own ``__init__``."""
    config = MagicMock()
    config.model_config.is_encoder_decoder = config.model_config.enable_return_routed_experts = False
    config.kv_transfer_config.kv_connector = connector
    config.kv_transfer_config.is_kv_producer = producer
    config.parallel_config.decode_context_parallel_size = config.parallel_config.prefill_context_parallel_size = 1
    config.parallel_config.pipeline_parallel_size = 1
    config.speculative_config = config.ec_transfer_config = None
    config.scheduler_config.policy, config.scheduler_config.max_num_seqs = "fcfs", 4
    config.cache_config.num_gpu_blocks = 9
    made = vllm.scheduler.Scheduler(config, MagicMock(), MagicMock(), 16)
    made.connector, made.kv_cache_manager = Connector(), Blocks()
    made.kv_cache_config = SimpleNamespace(kv_cache_groups=[1])
    made.waiting = []
    if hasattr(made, "skipped_waiting"):
        made.skipped_waiting = []
    return made


def request(vllm: SimpleNamespace, made: Any, name: str, status: str) -> Any:
    """A request that the scheduler knows."""
    found = object.__new__(vllm.request.Request)
    found.request_id, found.status = name, getattr(vllm.request.RequestStatus, status)
    found.client_index, found.num_computed_tokens = 0, 7
    found._all_token_ids = [0] * 7
    made.requests[name] = found
    return found


def transfers(received: tuple[str, ...] = (), sent: tuple[str, ...] = ()) -> Any:
    """What the worker says of transfers in one step."""
    nothing = dict.fromkeys(("kv_connector_stats", "kv_cache_events", "invalid_block_ids"))
    return SimpleNamespace(finished_recving=set(received), finished_sending=set(sent), **nothing)


def test_the_scheduler_takes_a_finished_receive_whatever_became_of_its_request(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm, producer=False)
    request(vllm, made, "waiting", "WAITING_FOR_REMOTE_KVS")
    request(vllm, made, "running", "RUNNING")
    request(vllm, made, "aborted", "FINISHED_ABORTED")
    made._update_from_kv_xfer_finished(transfers(received=("waiting", "running", "aborted", "vanished")))
    assert made.finished_recving_kv_req_ids == {"waiting"}
    # From 0.16.0 an aborted request keeps its blocks until its receive is over; before, they were freed at the abort.
    keeps = tuple(map(int, vllm.version.split("."))) >= (0, 16)
    assert made.kv_cache_manager.freed == (["aborted"] if keeps else [])
    assert "running" in made.requests


def test_the_scheduler_takes_a_finished_send_that_is_early_late_or_in_time(
    vllm: SimpleNamespace, messages: Callable[[], list[str]]
) -> None:
    made = scheduler(vllm)
    request(vllm, made, "finished", "FINISHED_LENGTH_CAPPED")
    early = request(vllm, made, "early", "RUNNING")
    made._update_from_kv_xfer_finished(transfers(sent=("finished", "early", "vanished")))
    assert made.kv_cache_manager.freed == ["finished"]
    assert "the blocks of request vanished were freed before" in messages()[0]
    early.status = vllm.request.RequestStatus.FINISHED_LENGTH_CAPPED
    made._free_request(early)
    assert made.kv_cache_manager.freed == ["finished", "early"]
    assert made.requests == {}
    late = request(vllm, made, "next", "FINISHED_LENGTH_CAPPED")
    made._free_request(late)
    assert made.kv_cache_manager.freed == ["finished", "early"]


def step(vllm: SimpleNamespace, made: Any, *, tokens: int = 0, output: Any = None) -> None:
    """One engine step's end, in which the worker had something or nothing to say of transfers."""
    planned = MagicMock(total_num_scheduled_tokens=tokens, num_scheduled_tokens={})
    model = MagicMock(kv_connector_output=output, sampled_token_ids=[], num_nans_in_logits=None, cudagraph_stats=None)
    made.make_stats = lambda *args, **kwargs: None
    made.update_from_output(planned, model)


class Clock:
    """The scheduler's clock, which a test turns on."""

    def __init__(self, vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(vllm.scheduler, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))

    def steps(self, vllm: SimpleNamespace, made: Any, seconds: float, *, tokens: int = 0) -> None:
        """Steps of 20 ms for a while, each with so many scheduled tokens."""
        for _ in range(round(seconds / 0.02)):
            self.now += 0.02
            step(vllm, made, tokens=tokens)


@pytest.fixture
def clock(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(vllm, monkeypatch)


def test_the_reaper_frees_a_leaked_request_once_and_only_when_idle(
    vllm: SimpleNamespace, clock: Clock, messages: Callable[[], list[str]]
) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    clock.steps(vllm, made, 4.0, tokens=5)  # ten times the bound, but never idle
    assert made.kv_cache_manager.freed == []
    clock.steps(vllm, made, 0.36)
    assert made.kv_cache_manager.freed == []
    clock.steps(vllm, made, 0.2)
    assert made.kv_cache_manager.freed == ["leaked"]
    clock.steps(vllm, made, 4.0)
    assert made.kv_cache_manager.freed == ["leaked"]
    (message,) = messages()
    assert "prefill-idle-kv-reaper: freed the blocks of 1 finished requests" in message
    assert "0.4 s without work (DISAGG_MORIIO_DEFER_TIMEOUT_S), the first: leaked" in message
    # The acknowledgement that was not lost but late does no harm.
    made._update_from_kv_xfer_finished(transfers(sent=("leaked",)))


def test_a_prefill_that_is_stuck_for_want_of_blocks_counts_as_idle(vllm: SimpleNamespace, clock: Clock) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    made.waiting.append(request(vllm, made, "stuck", "WAITING"))
    clock.steps(vllm, made, 0.6)
    assert made.kv_cache_manager.freed == ["leaked"]
    assert list(made.requests) == ["stuck"]


def test_a_request_that_finishes_in_the_last_busy_step_gets_its_whole_time(vllm: SimpleNamespace, clock: Clock) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "old", "FINISHED_LENGTH_CAPPED"))
    clock.steps(vllm, made, 0.36)
    made._free_request(request(vllm, made, "new", "FINISHED_LENGTH_CAPPED"))
    clock.steps(vllm, made, 0.02, tokens=5)
    clock.steps(vllm, made, 0.36)
    assert made.kv_cache_manager.freed == []
    clock.steps(vllm, made, 0.3)
    assert sorted(made.kv_cache_manager.freed) == ["new", "old"]


def test_a_request_that_its_peer_acknowledges_is_not_the_reapers(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "sent", "FINISHED_LENGTH_CAPPED"))
    step(vllm, made, output=transfers(sent=("sent",)))
    assert made.kv_cache_manager.freed == ["sent"]
    assert made.kv_reaper_wait_s() is None


@pytest.mark.parametrize(("connector", "producer"), [("NixlConnector", True), ("MoRIIOConnector", False)])
def test_the_reaper_leaves_other_connectors_and_decode_alone(
    vllm: SimpleNamespace, clock: Clock, connector: str, producer: bool
) -> None:
    made = scheduler(vllm, connector=connector, producer=producer)
    made._free_request(request(vllm, made, "kept", "FINISHED_LENGTH_CAPPED"))
    made.finished_req_ids.clear()
    clock.steps(vllm, made, 4.0)
    assert made.kv_cache_manager.freed == []
    assert made.kv_reaper_wait_s() is None


def engine(vllm: SimpleNamespace, made: Any) -> Any:
    """The engine's main loop around a scheduler, one turn at a time."""
    found = object.__new__(vllm.core.EngineCoreProc)
    found.scheduler, found.batch_queue, found.engines_running = made, None, False
    found.input_queue, found.aborts_queue = queue.Queue(), queue.Queue()
    found._scheduler_paused, found.process_input_queue_block = False, True
    found.handled = []
    found._handle_client_request = lambda *words: found.handled.append(words)
    found._notify_idle_state_callbacks = lambda: None
    found.is_running = lambda: True
    return found


def test_an_idle_engine_is_stepped_for_the_reaper_and_for_nothing_else(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm)
    found = engine(vllm, made)
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    made.finished_req_ids.clear()
    made.get_num_unfinished_requests = lambda: 0
    made.has_unfinished_requests = lambda: False
    made.has_requests = lambda: made.has_finished_requests()
    turns = 0
    started = time.monotonic()
    while not made.kv_cache_manager.freed:
        found._process_input_queue()
        # What EngineCore.step does with a scheduler that has work and nothing to schedule.
        if made.has_requests():
            step(vllm, made)
        if tuple(map(int, vllm.version.split("."))) >= (0, 22):
            time.sleep(0.001)  # as the engine itself does there
        turns += 1
        assert time.monotonic() - started < 20
    assert time.monotonic() - started >= 0.4
    if tuple(map(int, vllm.version.split("."))) < (0, 22):
        assert turns < 40  # it waits for input between its looks
    assert found.handled == []

    # Nothing is kept any more: the loop waits for a request as it always did.
    thread = threading.Thread(target=found._process_input_queue, daemon=True)
    thread.start()
    thread.join(0.6)
    assert thread.is_alive()
    made.has_requests = lambda: bool(found.handled)
    found.input_queue.put(("add", "request"))
    thread.join(5)
    assert not thread.is_alive()
    assert found.handled == [("add", "request")]


def test_an_idle_engine_takes_a_request_at_once_while_the_reaper_waits(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm)
    found = engine(vllm, made)
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    made.finished_req_ids.clear()
    made.kv_reap_next = time.monotonic() + 60
    made.has_requests = lambda: bool(found.handled) or made.kv_reaper_wait_s() == 0.0
    threading.Timer(0.1, found.input_queue.put, [("add", "request")]).start()
    assert Timed(found._process_input_queue).seconds < 5
    assert found.handled == [("add", "request")]


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

"""The MoRI-IO patches: what the scheduler makes of finished transfers, and the reaper of leaked requests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.real.moriio.patched import Clock, Timed

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


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
    # An acknowledgement counts once: a later request, of the same id or not, waits for its own.
    for name in ("next", "early"):
        made._free_request(request(vllm, made, name, "FINISHED_LENGTH_CAPPED"))
        assert made.kv_cache_manager.freed == ["finished", "early"]
        assert name in made.requests


def step(vllm: SimpleNamespace, made: Any, *, tokens: int = 0, output: Any = None) -> None:
    """One engine step's end, in which the worker had something or nothing to say of transfers."""
    planned = MagicMock(total_num_scheduled_tokens=tokens, num_scheduled_tokens={})
    model = MagicMock(kv_connector_output=output, sampled_token_ids=[], num_nans_in_logits=None, cudagraph_stats=None)
    made.make_stats = lambda *args, **kwargs: None
    made.update_from_output(planned, model)


class StepClock(Clock):
    """The scheduler's clock, which goes on with its steps."""

    def steps(self, vllm: SimpleNamespace, made: Any, seconds: float, *, tokens: int = 0) -> None:
        """Steps of 20 ms for a while, each with so many scheduled tokens."""
        for _ in range(round(seconds / 0.02)):
            self.turn(0.02)
            step(vllm, made, tokens=tokens)


@pytest.fixture
def clock(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> StepClock:
    return StepClock(vllm.scheduler, monkeypatch)


def test_the_reaper_frees_a_leaked_request_once_and_only_when_idle(
    vllm: SimpleNamespace, clock: StepClock, messages: Callable[[], list[str]]
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


def test_a_prefill_that_is_stuck_for_want_of_blocks_counts_as_idle(vllm: SimpleNamespace, clock: StepClock) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    made.waiting.append(request(vllm, made, "stuck", "WAITING"))
    clock.steps(vllm, made, 0.6)
    assert made.kv_cache_manager.freed == ["leaked"]
    assert list(made.requests) == ["stuck"]


def test_a_request_that_finishes_in_the_last_busy_step_gets_its_whole_time(
    vllm: SimpleNamespace, clock: StepClock
) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "old", "FINISHED_LENGTH_CAPPED"))
    clock.steps(vllm, made, 0.36)
    made._free_request(request(vllm, made, "new", "FINISHED_LENGTH_CAPPED"))
    clock.steps(vllm, made, 0.02, tokens=5)
    clock.steps(vllm, made, 0.36)
    assert made.kv_cache_manager.freed == []
    clock.steps(vllm, made, 0.3)
    assert sorted(made.kv_cache_manager.freed) == ["new", "old"]


def test_a_request_that_finishes_in_a_long_idle_spell_gets_its_whole_time(
    vllm: SimpleNamespace, clock: StepClock
) -> None:
    made = scheduler(vllm)
    clock.steps(vllm, made, 4.0)
    made._free_request(request(vllm, made, "aborted", "FINISHED_ABORTED"))
    clock.steps(vllm, made, 0.36)
    assert made.kv_cache_manager.freed == []
    clock.steps(vllm, made, 0.2)
    assert made.kv_cache_manager.freed == ["aborted"]


def test_requests_that_wait_or_run_are_nothing_for_the_reaper_to_be_stepped_for(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm)
    queues = [name for name in ("waiting", "running", "skipped_waiting") if hasattr(made, name)]
    for name in queues:
        getattr(made, name).append(request(vllm, made, name, "WAITING"))
        assert made.kv_reaper_wait_s() is None
    made._free_request(request(vllm, made, "leaked", "FINISHED_LENGTH_CAPPED"))
    assert made.kv_reaper_wait_s() == 0.0


def test_a_request_that_its_peer_acknowledges_is_not_the_reapers(vllm: SimpleNamespace) -> None:
    made = scheduler(vllm)
    made._free_request(request(vllm, made, "sent", "FINISHED_LENGTH_CAPPED"))
    step(vllm, made, output=transfers(sent=("sent",)))
    assert made.kv_cache_manager.freed == ["sent"]
    assert made.kv_reaper_wait_s() is None


@pytest.mark.parametrize(("connector", "producer"), [("NixlConnector", True), ("MoRIIOConnector", False)])
def test_the_reaper_leaves_other_connectors_and_decode_alone(
    vllm: SimpleNamespace, clock: StepClock, connector: str, producer: bool
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

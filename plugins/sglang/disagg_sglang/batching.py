"""How much a server takes at once: memory, running requests, chunks, graphs, context; from the table and the load."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from disagg_run.context import ProcessContext
from disagg_run.records import Flag, flag
from disagg_run.roles import dp_ranks, mode_name
from disagg_run.sources import Layer, Source
from disagg_sglang import held, models, versions
from disagg_sglang.hicache import enabled


def flags(ctx: ProcessContext) -> Iterator[Flag]:
    """All of them; in an agentic run with what the table says for it in place of the mode's."""
    yield from _memory(ctx)
    yield from _running(ctx)
    yield from _chunks(ctx)
    yield from _graphs(ctx)
    yield from _context(ctx)
    yield from _streams(ctx)
    if ctx.process.role == "prefill" and not enabled(ctx) and not ctx.setting("agentic", False):
        # A benchmark's prompts have nothing in common; the engine itself switches decode's off.
        yield flag("--disable-radix-cache")
        yield held.prefix_cache(hicache=False)


def _memory(ctx: ProcessContext) -> Iterator[Flag]:
    role = ctx.process.role or "prefill"
    block = models.agentic(ctx)
    if block is not None and role == "prefill":
        source = ctx.table_source("agentic.prefill.mem_fraction_static")
        yield flag("--mem-fraction-static", block.prefill.mem_fraction_static, source=source)
        return
    source = ctx.table_source(f"{role}.mem_fraction_static")
    yield flag("--mem-fraction-static", models.body(ctx).role(role).mem_fraction_static, source=source)


def _running(ctx: ProcessContext) -> Iterator[Flag]:
    number, source = running_requests(ctx)
    if number is not None:
        yield flag("--max-running-requests", number, source=source)
    if ctx.process.role == "decode":
        yield from versions.decode_slots(ctx.engine_version, number and number // dp_ranks(ctx.role_spec))


def running_requests(ctx: ProcessContext) -> tuple[int | None, Source]:
    """Requests that one worker runs at once, and why; the engine divides them over its DP ranks.

    A load below the number of DP ranks would leave a rank none, which the engine refuses: then it is one each.
    """
    mode, path = models.mode(ctx)
    ranks, load = dp_ranks(ctx.role_spec), ctx.spec.bench.concurrency
    block = models.agentic(ctx)
    if block is not None and ctx.process.role == "prefill":
        return block.prefill.max_running_requests, ctx.table_source("agentic.prefill.max_running_requests")
    if mode.max_running_is_load and load:
        why = f"highest of bench.concurrency ({ctx.spec.source('bench.concurrency')})"
        if max(load) < ranks:
            why = f"one for each of {ranks} DP ranks"
        return max(*load, ranks), Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why=why)
    if mode.max_running_per_rank is not None:
        why = f"{mode.max_running_per_rank} for each of {ranks} DP ranks"
        return mode.max_running_per_rank * ranks, ctx.table_source(f"{path}.max_running_per_rank", why=why)
    return mode.max_running_requests, ctx.table_source(f"{path}.max_running_requests")


def _chunks(ctx: ProcessContext) -> Iterator[Flag]:
    mode, path = models.mode(ctx)
    block = models.agentic(ctx)
    if ctx.process.role != "prefill":
        return
    if block is not None:
        source = ctx.table_source("agentic.prefill.chunked_prefill_size")
        yield flag("--chunked-prefill-size", block.prefill.chunked_prefill_size, source=source)
        return
    size, source = chunk_tokens(ctx)
    if size is not None:
        yield flag("--chunked-prefill-size", size, source=source)
    if mode.max_total_tokens is not None:
        yield flag("--max-total-tokens", mode.max_total_tokens, source=ctx.table_source(f"{path}.max_total_tokens"))
    if mode.two_batch_overlap:
        yield flag("--enable-two-batch-overlap", source=ctx.table_source(f"{path}.two_batch_overlap"))


def chunk_tokens(ctx: ProcessContext) -> tuple[int | None, Source]:
    """Tokens of one prefill chunk of a worker, and why; under DP attention the engine gives each rank its share."""
    mode, path = models.mode(ctx)
    if mode.chunked_prefill_per_rank is not None:
        ranks = dp_ranks(ctx.role_spec)
        source = ctx.table_source(
            f"{path}.chunked_prefill_per_rank", why=f"{mode.chunked_prefill_per_rank} for each of {ranks} DP ranks"
        )
        return mode.chunked_prefill_per_rank * ranks, source
    return mode.chunked_prefill_size, ctx.table_source(f"{path}.chunked_prefill_size")


def _graphs(ctx: ProcessContext) -> Iterator[Flag]:
    role = ctx.process.role or "prefill"
    mode, path = models.mode(ctx)
    if not models.body(ctx).role(role).graphs:
        source = ctx.table_source(f"{role}.graphs")
        yield from (attrs.evolve(each, source=source) for each in versions.no_graphs(ctx.engine_version))
    elif mode.graph_sizes is not None:
        source = ctx.table_source(f"{path}.graph_sizes", why=f"all sizes up to {mode.graph_sizes}")
        yield attrs.evolve(versions.graph_sizes(ctx.engine_version, mode.graph_sizes), source=source)


def _context(ctx: ProcessContext) -> Iterator[Flag]:
    """The longest request, the same for both roles: decode would wait for what prefill refuses."""
    block = models.agentic(ctx)
    if block is not None:
        yield flag("--context-length", block.context_length, source=ctx.table_source("agentic.context_length"))
        return
    for role in ("prefill", "decode"):
        name = mode_name(ctx.spec.role(role))
        path = f"{role}.modes.{name}.context_is_load"
        mode = models.body(ctx).role(role).modes.get(name)
        if mode is not None and mode.context_is_load:
            bench = ctx.spec.bench
            why = f"prompt {bench.input_len} + completion {bench.output_len} + 1"
            source = ctx.table_source(path, why=why)
            yield flag("--context-length", bench.input_len + bench.output_len + 1, source=source)
            return


def _streams(ctx: ProcessContext) -> Iterator[Flag]:
    mode, path = models.mode(ctx)
    if mode.stream_interval is not None:
        yield flag("--stream-interval", mode.stream_interval, source=ctx.table_source(f"{path}.stream_interval"))
    if mode.tokenizer_workers is not None:
        yield flag(
            "--tokenizer-worker-num", mode.tokenizer_workers, source=ctx.table_source(f"{path}.tokenizer_workers")
        )

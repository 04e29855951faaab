from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from disagg_run.simulation.listeners import BindError, bind, port_of, serve_tcp
from disagg_run.simulation.peers import KvClient, KvListener, KvStore, PeerError, differences

SETTINGS = {"block_size": 16, "dtype": "fp8"}


def with_server(work: Callable[[KvStore, str, int], Coroutine[Any, Any, None]], host: str) -> None:
    async def run() -> None:
        store = KvStore()
        server = await serve_tcp(host, 0, KvListener(store, SETTINGS).handle)
        async with server:
            await asyncio.wait_for(work(store, host, port_of(server)), 20)

    asyncio.run(run())


def test_kv_is_fetched_once(next_address: Callable[[], str]) -> None:
    async def work(store: KvStore, host: str, port: int) -> None:
        client = KvClient()
        assert await client.hello(host, [port]) == SETTINGS
        store.offer("a", "digest", hold_s=9)
        assert store.held == 1
        assert await client.fetch(host, port, "a", 5) == "digest"
        assert store.held == 0
        with pytest.raises(PeerError, match="no KV for request 'a'"):
            await client.fetch(host, port, "a", 0.05)

    with_server(work, next_address())


def test_decode_may_come_before_prefill(next_address: Callable[[], str]) -> None:
    async def work(store: KvStore, host: str, port: int) -> None:
        fetching = asyncio.ensure_future(KvClient().fetch(host, port, "late", 5))
        while "late" not in store._offers:
            await asyncio.sleep(0)
        store.offer("late", "digest", hold_s=9)
        assert await fetching == "digest"

    with_server(work, next_address())


def test_prefill_can_wait_until_its_kv_is_fetched() -> None:
    async def work() -> None:
        store = KvStore()
        store.offer("a", "digest", hold_s=9)
        waiting = asyncio.ensure_future(store.fetched("a", 5))
        assert await store.fetch("a", 1) == "digest"
        await waiting
        store.offer("b", "digest", hold_s=9)
        with pytest.raises(PeerError, match="nobody fetched the KV of request 'b'"):
            await store.fetched("b", 0.01)
        assert store.held == 0

    asyncio.run(work())


def test_kv_that_nobody_fetches_is_dropped() -> None:
    async def work() -> None:
        store = KvStore()
        store.offer("a", "digest", hold_s=0.01)
        deadline = asyncio.get_running_loop().time() + 5
        while store.held and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        assert not store.held

    asyncio.run(work())


def test_a_peer_that_is_not_there_is_named(next_address: Callable[[], str]) -> None:
    host = next_address()
    with pytest.raises(PeerError, match=f"cannot connect to the prefill server at {host}:6301"):
        asyncio.run(KvClient().hello(host, [6301]))


def test_differences_name_both_values() -> None:
    assert differences(SETTINGS, {"block_size": 32, "dtype": "fp8"}, SETTINGS) == [
        "block_size is 16 here and 32 at the prefill server"
    ]


def test_a_taken_port_is_told_in_the_words_of_asyncio(next_address: Callable[[], str]) -> None:
    host = next_address()
    with bind(host, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BindError) as ours:
            bind(host, port)

        async def theirs() -> None:
            await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)

        with pytest.raises(OSError, match="attempting to bind") as asyncios:
            asyncio.run(theirs())
    assert str(ours.value) == str(asyncios.value)


def test_a_node_binds_its_own_address_only(next_address: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    address = next_address()
    monkeypatch.setenv("DISAGG_RUN_NODE_ADDRESS", address)
    for told in ("0.0.0.0", "127.0.0.1", "localhost", ""):
        with bind(told, 0) as opened:
            assert opened.getsockname()[0] == address


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(BindError, match=r"\[Errno 99\] .*\('192.0.2.7', 8010\): cannot assign requested address"):
        bind("192.0.2.7", 8010)

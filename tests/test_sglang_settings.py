"""Settings of SGLang, its connectors and its store: numbers within their bounds, a size that the engine can read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from disagg_run import DisaggError, LaunchPlan, SpecError
from disagg_sglang import settings
from tests.sglang_plans import contract

EXTRA = "--hicache-storage-backend-extra-config"


def store(**exported: Any) -> LaunchPlan:
    """The plan with a Mooncake store, and what a job script exports."""
    return contract(**{"KV_OFFLOADING": "dram", "HICACHE_STORAGE_BACKEND": "mooncake", **exported})


@pytest.mark.parametrize("text", ["64g", "1.5gb", "0gb", "gb", "-1gb", "64 GiB", "0"])
def test_a_segment_size_that_the_engine_cannot_read_is_refused_before_anything_starts(text: str) -> None:
    with pytest.raises(SpecError, match=r"mc_global_segment_size is '.*' \(environment contract MC_GLOBAL_SEG\)"):
        store(MC_GLOBAL_SEG=text)


@pytest.mark.parametrize("text", ["64gb", "64GB", "64 gb", "1073741824"])
def test_a_segment_size_that_the_engine_reads_is_passed_on(text: str) -> None:
    argv = store(MC_GLOBAL_SEG=text).process("prefill-0").argv
    assert json.loads(argv[argv.index(EXTRA) + 1])["global_segment_size"] == text


#: Contract variable, a value below its bounds, the lowest and the highest right one, one above (None = no bound).
BOUNDS = [
    ("HICACHE_RATIO", "0", "0.01", "1000", "1001"),
    ("HICACHE_RATIO", "-3", "1", "5", "1e9"),
    ("TOTAL_CPU_DRAM_GB", "-1", "8", "100000", "1600000000000"),
    ("TOTAL_CPU_DRAM_GB", "0.5", "1600", "2400", "100001"),
    ("HICACHE_HOST_POOL_COUNT", "0", "1", "2", None),
    ("HICACHE_PAGE_SIZE", "0", "1", "256", None),
    ("MC_MASTER_THREADS", "0", "1", "4096", "4097"),
    ("MC_EVICTION_HIGH_WATERMARK", "-0.1", "0", "1", "95"),
    ("MORI_RDMA_TC", "-1", "0", "255", "256"),
    ("MORI_IO_QP_MAX_SEND_WR", "0", "1", "65535", None),
    ("MORI_IO_SQ_BACKOFF_TIMEOUT_US", "0", "1", "500000", None),
    ("SYNC_BARRIER_TIMEOUT", "0", "1", "86400", None),
    ("ROUTER_CANARY_TIMEOUT", "-600", "1", "86400", None),
]


@pytest.mark.parametrize(("name", "low", "least", "most", "high"), BOUNDS)
def test_a_number_out_of_its_bounds_is_refused_in_one_line(
    name: str, low: str, least: str, most: str, high: str | None
) -> None:
    for text in (least, most):
        assert store(**{name: text}).bound
    for number, told in ((low, "is too small: at least"), (high, "is too large: at most"), ("nan", "no")):
        if number is not None:
            with pytest.raises(DisaggError, match=rf"^environment variable {name}: .*{told}") as caught:
                store(**{name: number})
            assert "\n" not in str(caught.value)


def test_every_number_of_the_engine_and_its_connectors_has_a_least_value() -> None:
    for each in (*settings.ENGINE, *settings.MORI):
        if each.type in ("int", "float"):
            assert each.minimum is not None, each.name
            assert each.maximum is None or each.maximum > each.minimum

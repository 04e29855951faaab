"""The page on job-script variables: what the code says, whole, and true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run import Setting, plan
from disagg_run.declarations import Engine, Extension
from disagg_run.environmentdocs import environment_page
from disagg_run.spec.contract_unread import ELSEWHERE, SUBMITTING, UNREAD, why_unread
from disagg_run.spec.environment import KV_TRANSFER
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec
from tests.parity.case import DATA, ENGINES, host

PAGE = Path(__file__).parents[1] / "docs" / "environment.md"

#: The variables that AMD's job scripts are known to have, beside those of the parity cases.
KNOWN = frozenset(
    """
    ENGINE NODE_RANK NNODES NODE0_ADDR IPADDRS xP yD MODEL_DIR MODEL_NAME MODEL_PATH GPUS_PER_NODE PREFILL_TP_SIZE
    DECODE_TP_SIZE PREFILL_ENABLE_EP PREFILL_ENABLE_DP DECODE_ENABLE_EP DECODE_ENABLE_DP DECODE_MTP_SIZE IBDEVICES
    MORI_RDMA_TC ROUTER_PORT BENCH_INPUT_LEN BENCH_OUTPUT_LEN BENCH_MAX_CONCURRENCY BENCH_REQUEST_RATE
    BENCH_RANDOM_RANGE_RATIO BENCH_NUM_PROMPTS_MULTIPLIER DRY_RUN RUN_EVAL EVAL_ONLY EVAL_CONC IS_AGENTIC KV_OFFLOADING
    KV_OFFLOAD_BACKEND KV_P2P_TRANSFER ENABLE_METRICS PREFILL_PORT DECODE_PORT HANDSHAKE_PORT MEM_FRAC_STATIC
    KV_CACHE_DTYPE BLOCK_SIZE MAX_NUM_SEQS MAX_MODEL_LEN MAX_NUM_BATCHED_TOKENS SCHEDULER_DELAY_FACTOR
    WAIT_SERVER_TIMEOUT WAIT_ROUTER_TIMEOUT EXTRA_SERVER_ARGS SERVER_PORT PROXY_PING_PORT ROUTER_TYPE
    ROUTER_POLICY_FLAGS ROUTER_RESILIENCE_FLAGS ROUTER_CB_ARGS PREFILL_ROUTER_POLICY TOTAL_CPU_DRAM_GB
    FORCE_HICACHE_RATIO SYNC_BARRIER_TIMEOUT CLIENT_IMAGE SLURM_ACCOUNT SLURM_PARTITION TIME_LIMIT CONTAINER_IMAGE
    RUNNER_NAME FRAMEWORK SLURM_REUSE_JOBID SLURM_EXCLUDE_NODES NODE_LIST SKIP_RDMA_CHECK SKIP_GPU_SANITY
    KEEP_CONTAINERS PREFILL_NODES DECODE_NODES
    """.split()  # noqa: SIM905 - a list of eighty names has no shape of its own
)


def case_variables(engine: str) -> set[str]:
    """The variables in the input of an engine's parity cases."""
    files = sorted((DATA / engine).glob("*.json"))
    return {name for file in files for name in json.loads(file.read_text(encoding="utf-8"))["input"]["env"]}


def records(engine: str) -> Iterator[Engine | Extension]:
    """An engine and all that fits it."""
    record = host().engine(engine)
    yield record
    yield from (each for each in host().extensions().values() if each.engines == "all" or engine in each.engines)


def read_by(engine: str) -> set[str]:
    """The variables that an option, or a setting of an engine's plugins, takes."""
    core = {name for option in OPTIONS for name in option.contract} | {KV_TRANSFER}
    return core | {name for record in records(engine) for setting in record.settings for name in setting.env}


def test_the_page_is_what_the_code_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    hint = "docs/environment.md is out of date: run `python -m disagg_run.environmentdocs > docs/environment.md`"
    assert environment_page(host()) == written, hint


def test_the_command_prints_the_page() -> None:
    done = subprocess.run([sys.executable, "-m", "disagg_run.environmentdocs"], capture_output=True, check=True)
    assert done.stdout.decode() == environment_page(host())
    assert done.stderr == b""


@pytest.mark.parametrize("engine", ENGINES)
def test_every_variable_of_the_cases_is_read_or_has_a_reason(engine: str) -> None:
    plugin = ENGINES[engine].plugin
    mine = read_by(plugin) | set(host().engine(plugin).contract_unread)
    # One that only another engine's plugin reads is remarked on where it is set: see below.
    others = {name for other in host().engines() for name in read_by(other)}
    assert len(case_variables(engine)) > 50
    assert [name for name in sorted(case_variables(engine) - mine - others) if not why_unread(name)] == []


def test_every_known_variable_is_on_the_page() -> None:
    page = environment_page(host())
    variables = {*KNOWN, *(name for engine in ENGINES for name in case_variables(engine))}
    patterns = [re.escape(each).replace(r"\*", r"\w*") for each in re.findall(r"^\| `([\w*]+)`", page, re.M)]
    missing = [name for name in sorted(variables) if not any(re.fullmatch(each, name) for each in patterns)]
    assert missing == []


def test_nothing_has_both_a_reader_and_a_reason() -> None:
    read = {name for engine in host().engines() for name in read_by(engine)}
    assert [name for name in sorted(read) if why_unread(name)] == []
    assert not (
        ELSEWHERE.keys() & SUBMITTING.keys() | ELSEWHERE.keys() & UNREAD.keys() | SUBMITTING.keys() & UNREAD.keys()
    )


def sample(setting: Setting) -> str:
    """A text that a setting takes and that does not count as not set."""
    if setting.choices:
        return next(str(each) for each in setting.choices if str(each) not in setting.unset_values)
    if setting.type in ("int", "float"):
        low = setting.minimum or 0
        middle = (low + (low + 8000 if setting.maximum is None else setting.maximum)) / 2
        return str(int(middle) if setting.type == "int" else middle)
    return {"bool": "true", "str": "x", "list": "a,b", "json": "[1]"}[setting.type]


@pytest.mark.parametrize("engine", [tested.plugin for tested in ENGINES.values()])
def test_every_row_of_an_engines_table_is_true(engine: str) -> None:
    model = next(iter(host().models(engine))).name
    extensions = [record for record in records(engine) if isinstance(record, Extension) and record.kind == "connector"]
    count = 0
    asked: tuple[Engine | Extension, ...] = (host().engine(engine), *extensions)
    for record in asked:
        connector = record.name if isinstance(record, Extension) else host().engine(engine).default_connector
        for setting in record.settings:
            for name, role in setting.env.items():
                environ = {"ENGINE": engine, "MODEL_NAME": model, name: sample(setting)}
                spec = read_spec(options={"connector": connector}, recipe=None, environ=environ, host=host())
                path = f"{role}.settings.{setting.name}" if role else f"settings.{setting.name}"
                assert spec.sources[path].where == name
                assert (spec.role(role) if role else spec).settings[setting.name] is not None
                for text in setting.unset_values:
                    spec = read_spec(options={}, recipe=None, environ={**environ, name: text}, host=host())
                    assert path not in spec.sources
                count += 1
    assert count == len(re.findall(r"^\| `", part(f"## Read for {engine}"), re.M)) + shared_rows(engine)


def part(heading: str) -> str:
    return environment_page(host()).partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def shared_rows(engine: str) -> int:
    """Variables that several connectors read under one setting's name stand once on the page."""
    pairs = [(s.name, name) for record in records(engine) for s in record.settings for name in s.env]
    return len(pairs) - len(set(pairs))


def test_a_variable_that_only_another_engine_reads_is_a_warning() -> None:
    base = {"ENGINE": "atom-disagg", "MODEL_NAME": "DeepSeek-V4-Pro"}
    spec = read_spec(
        options={}, recipe=None, environ={**base, "KV_OFFLOADING": "dram", "MORI_RDMA_TC": "104"}, host=host()
    )
    (warning,) = plan(spec, host=host()).warnings
    assert warning.message == "environment variable KV_OFFLOADING says 'dram', but nothing of atom-disagg reads it"
    for quiet in ({"KV_OFFLOADING": "none"}, {"ENABLE_METRICS": "0"}, {"PREFILL_ROUTER_POLICY": "random"}, {}):
        assert read_spec(options={}, recipe=None, environ={**base, **quiet}, host=host()).notices == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_case_has_a_variable_that_is_a_warning(engine: str) -> None:
    for file in sorted((DATA / engine).glob("*.json")):
        environ = json.loads(file.read_text(encoding="utf-8"))["input"]["env"]
        assert read_spec(options={}, recipe=None, environ=environ, host=host()).notices == ()

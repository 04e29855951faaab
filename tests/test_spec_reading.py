"""All layers together: who wins, and who is said to have set it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.host import Host
from disagg_run.sources import Layer
from disagg_run.spec.model import Node
from disagg_run.spec.reading import read_spec
from tests.spec_toy import read, spec_host, write


@pytest.fixture(scope="module")
def host() -> Host:
    return spec_host()


LAYERS = {
    Layer.CONTRACT: "PREFILL_TP_SIZE",
    Layer.RUN_FILE: "r.yaml:2",
    Layer.VARIABLE: "DISAGG_RUN_PREFILL_TP",
    Layer.COMMAND_LINE: "--prefill-tp",
}


@given(st.dictionaries(st.sampled_from(list(LAYERS)), st.sampled_from([1, 2, 4, 8])))
def test_the_highest_layer_that_speaks_wins_and_is_the_source(
    tmp_path_factory: pytest.TempPathFactory, host: Host, said: dict[Layer, int]
) -> None:
    environ, options, recipe = {}, {}, None
    if Layer.CONTRACT in said:
        environ["PREFILL_TP_SIZE"] = str(said[Layer.CONTRACT])
    if Layer.RUN_FILE in said:
        recipe = write(tmp_path_factory.mktemp("r"), f"prefill:\n  tp: {said[Layer.RUN_FILE]}\n")
    if Layer.VARIABLE in said:
        environ["DISAGG_RUN_PREFILL_TP"] = str(said[Layer.VARIABLE])
    if Layer.COMMAND_LINE in said:
        options["prefill.tp"] = str(said[Layer.COMMAND_LINE])
    spec = read(host, options, environ, recipe)
    source = spec.source("prefill.tp")
    if said:
        winner = max(said)
        assert spec.prefill.tp == said[winner]
        assert (source.layer, source.where) == (winner, LAYERS[winner])
    else:
        assert spec.prefill.tp is None
        assert source.layer is Layer.CORE
    held = max(said, default=None) is Layer.RUN_FILE and Layer.CONTRACT in said
    assert bool(spec.notices) == (held and said[Layer.CONTRACT] != said[Layer.RUN_FILE])


def test_a_run_file_that_contradicts_the_contract_is_noted_with_both_places(host: Host, tmp_path: Path) -> None:
    spec = read(
        host, environ={"xP": "1", "yD": "2"}, recipe=write(tmp_path, "prefill: {workers: 2}\ndecode: {workers: 2}\n")
    )
    ((text, source),) = spec.notices
    assert text == (
        "run file r.yaml:1 sets prefill.workers to '2', environment variable xP says '1': the run file holds"
    )
    assert source == spec.source("prefill.workers")


def test_both_roles_give_way_to_one_role_in_a_layer_and_win_over_it_in_a_lower_one(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "prefill: {mtp: 3}\nmtp: 1\n")
    assert [read(host, recipe=recipe).role(role).mtp for role in ("prefill", "decode")] == [3, 1]
    spec = read(host, {"mtp": "2"}, recipe=recipe)
    assert [spec.role(role).mtp for role in ("prefill", "decode")] == [2, 2]
    assert spec.source("prefill.mtp").where == "--mtp"
    assert read(host, environ={"DECODE_MTP_SIZE": "2"}).prefill.mtp == 2


def test_args_of_all_layers_accumulate_each_with_its_place(host: Host, tmp_path: Path) -> None:
    spec = read(
        host,
        {"args": ["--seed 7", "--x 'a b'"], "decode.args": ("--eager",)},
        {"EXTRA_SERVER_ARGS": "--a  --b=1", "DISAGG_RUN_ARGS": "--c"},
        write(tmp_path, "\nargs: [--json, '{\"a\": 1}', 7]\nprocesses:\n  decode-0:\n    args: --slow yes\n"),
    )
    assert [(each.words, each.source.where) for each in spec.args] == [
        (("--a", "--b=1"), "EXTRA_SERVER_ARGS"),
        (("--json", '{"a": 1}', "7"), "r.yaml:2"),
        (("--c",), "DISAGG_RUN_ARGS"),
        (("--seed", "7"), "--args"),
        (("--x", "a b"), "--args"),
    ]
    assert spec.decode.args[0].words == ("--eager",)
    assert spec.processes["decode-0"].args[0].words == ("--slow", "yes")


def test_variables_of_processes_keep_their_targets_apart(host: Host, tmp_path: Path) -> None:
    spec = read(
        host,
        {"env": ["A=1=2", "prefill:A=p", "decode-0.1:A=q", "router:R=", "all:B=x y"]},
        {"DISAGG_RUN_ENV_A": "low", "DISAGG_RUN_DECODE_ENV_D": ""},
        write(tmp_path, "env: {NUM: 0104, Y1: yes, EMPTY: ''}\nprocesses: {decode-0: {env: {A: r}}}\n"),
    )
    assert dict(spec.env) == {"A": "1=2", "B": "x y", "NUM": "0104", "Y1": "yes", "EMPTY": ""}
    assert dict(spec.prefill.env) == {"A": "p"}
    assert dict(spec.decode.env) == {"D": ""}
    assert dict(spec.router.env) == {"R": ""}
    assert {name: dict(each.env) for name, each in spec.processes.items()} == {
        "decode-0": {"A": "r"},
        "decode-0.1": {"A": "q"},
    }
    assert spec.source("processes.decode-0.1.env.A").where == "--env"
    assert spec.source("env.NUM").where == "r.yaml:1"


def test_settings_are_read_by_their_declared_types(host: Host, tmp_path: Path) -> None:
    recipe = write(
        tmp_path,
        "settings:\n  sizes: [1, 0.10]\n  graph: [1, null]\n  version-text: 0.10\n"
        "prefill:\n  settings: {dtype: bf16}\n",
    )
    spec = read(
        host,
        {"settings": ["block_size=64", "decode:block-size=32"]},
        {"BLOCK_SIZE": "16", "TOY_DTYPE": "fp8", "TOY_DECODE_DTYPE": "bf16", "DISAGG_RUN_SET_HANDSHAKE_PORT": "7"},
        recipe,
    )
    assert dict(spec.settings) == {
        "block_size": 64,
        "sizes": ("1", "0.10"),
        "graph": [1, None],
        "version_text": "0.10",
        "handshake_port": 7,
    }
    assert dict(spec.prefill.settings) == {"dtype": "bf16"}
    assert dict(spec.decode.settings) == {"block_size": 32, "dtype": "bf16"}
    assert spec.source("decode.settings.dtype").where == "TOY_DECODE_DTYPE"
    assert spec.source("settings.version_text").where == "r.yaml:4"


def test_names_of_all_layers_unite(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "waive: [a, b]\nsecrets: HF_TOKEN\n")
    spec = read(host, {"waive": ("b", "c")}, {"DISAGG_RUN_SECRET": "X,Y"}, recipe)
    assert spec.waive == ("a", "b", "c")
    assert spec.secrets == ("HF_TOKEN", "X", "Y")
    assert spec.source("waive.a").where == "r.yaml:1"


def test_values_that_job_scripts_always_export_count_as_not_set(host: Host, tmp_path: Path) -> None:
    environ = {
        "ENGINE": "", "MODEL_NAME": "none", "DECODE_MTP_SIZE": "0", "PREFILL_ENABLE_EP": "false", "IBDEVICES": "",
        "ROUTER_PORT": "30000", "BENCH_REQUEST_RATE": "none", "TOY_DTYPE": "fp8",
    }  # fmt: skip
    recipe = write(tmp_path, "mtp: 2\nprefill: {ep: true}\nrouter: {port: 31000}\nsettings: {dtype: bf16}\n")
    spec = read(host, environ=environ, recipe=recipe)
    assert not [path for path, source in spec.sources.items() if source.layer is Layer.CONTRACT]
    assert not spec.notices
    assert read(host, environ={"ROUTER_PORT": "31000"}).router.port == 31000


def test_the_whole_core_contract_is_read(host: Host) -> None:
    environ = {
        "ENGINE": "toy-disagg", "xP": "2", "yD": "1", "MODEL_DIR": "/m", "MODEL_NAME": "toy-model",
        "MODEL_PATH": "/m/x",
        "GPUS_PER_NODE": "4", "IPADDRS": "10.0.0.1,10.0.0.2,fd00::1", "PREFILL_TP_SIZE": "4", "DECODE_TP_SIZE": "8",
        "PREFILL_ENABLE_EP": "true", "DECODE_ENABLE_DP": "true", "DECODE_MTP_SIZE": "3", "IBDEVICES": "rdma0,rdma1",
        "ROUTER_PORT": "31000", "BENCH_INPUT_LEN": "1024", "BENCH_OUTPUT_LEN": "8", "BENCH_MAX_CONCURRENCY": "8x16",
        "BENCH_REQUEST_RATE": "2.5", "BENCH_RANDOM_RANGE_RATIO": "1", "BENCH_NUM_PROMPTS_MULTIPLIER": "3",
        "EXTRA_SERVER_ARGS": "--enforce-eager --seed 7",
    }  # fmt: skip
    spec = read_spec(options={}, recipe=None, environ=environ, host=host)
    assert (spec.engine, spec.model, spec.model_dir, spec.model_path) == ("toy-disagg", "toy-model", "/m", "/m/x")
    assert (spec.prefill.workers, spec.decode.workers, spec.gpus_per_node) == (2, 1, 4)
    assert spec.nodes == tuple(Node(address=each) for each in ("10.0.0.1", "10.0.0.2", "fd00::1"))
    assert (spec.prefill.tp, spec.decode.tp, spec.prefill.mtp, spec.decode.mtp) == (4, 8, 3, 3)
    assert (spec.prefill.expert_parallel, spec.decode.expert_parallel) == (True, False)
    assert (spec.prefill.dp_attention, spec.decode.dp_attention) == (False, True)
    assert (spec.ib_devices, spec.router.port) == (("rdma0", "rdma1"), 31000)
    bench = spec.bench
    assert (bench.input_len, bench.output_len, bench.concurrency, bench.request_rate) == (1024, 8, (8, 16), "2.5")
    assert (bench.range_ratio, bench.prompts_multiplier) == (1.0, 3)
    assert spec.source("engine").where == "ENGINE"
    assert {source.layer for source in spec.sources.values()} == {Layer.CONTRACT}


def test_a_run_file_can_be_named_by_a_variable(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "pack: true\n")
    assert read(host, environ={"DISAGG_RUN_RECIPE": str(recipe)}).pack


def test_the_stand_ins_options_are_kept_by_target(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "simulation: {all: --ttft-ms 5, decode-0: [--die-after, 3]}\n")
    spec = read(host, {"simulation": ["--ttft-ms 9", "decode-0:--code 7"], "simulate": True}, recipe=recipe)
    assert spec.simulate
    assert dict(spec.simulation) == {
        "all": ("--ttft-ms", "5", "--ttft-ms", "9"),
        "decode-0": ("--die-after", "3", "--code", "7"),
    }

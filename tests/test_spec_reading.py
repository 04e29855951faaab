"""All layers together: who wins, and who is said to have set it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.declarations import Engine, Extension, ModelRow, Setting
from disagg_run.errors import SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Host, build_host
from disagg_run.sources import Layer
from disagg_run.spec.model import LaunchSpec, Node
from disagg_run.spec.option import Option
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec


class ToyEngine:
    @hookimpl
    def disagg_plugin(self) -> Engine:
        return Engine(
            name="toy-disagg",
            summary="a toy",
            models=[ModelRow(name="toy-model")],
            versions="",
            default_version="1.0",
            default_connector="toy",
            contract_unset={"ROUTER_PORT": ["30000"]},
            settings=[
                Setting(name="block_size", type="int", summary="tokens in a block", env={"BLOCK_SIZE": None}),
                Setting(
                    name="dtype",
                    type="str",
                    summary="number format",
                    env={"TOY_DTYPE": None, "TOY_DECODE_DTYPE": "decode"},
                    unset_values=["fp8"],
                    choices=["fp8", "bf16"],
                ),
                Setting(name="sizes", type="list", summary="batch sizes"),
                Setting(name="graph", type="json", summary="graph options"),
                Setting(name="version_text", type="str", summary="some text"),
            ],
        )


class ToyConnector:
    @hookimpl
    def disagg_plugin(self) -> Extension:
        ports = Setting(name="handshake_port", type="int", summary="first port of the handshake")
        return Extension(name="toy", summary="a toy connector", kind="connector", settings=[ports])


BASE = {"engine": "toy-disagg", "model": "toy-model"}


@pytest.fixture(scope="module")
def host() -> Host:
    return build_host(plugins=[ToyEngine(), ToyConnector()], entry_points=False)


def read(
    host: Host,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    recipe: Path | None = None,
) -> LaunchSpec:
    return read_spec(options={**BASE, **(options or {})}, recipe=recipe, environ=environ or {}, host=host)


def refused(host: Host, *args: Any, **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        read(host, *args, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


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
        "GPUS_PER_NODE": "4", "IPADDRS": "10.0.0.1,10.0.0.2,fe80::1", "PREFILL_TP_SIZE": "4", "DECODE_TP_SIZE": "8",
        "PREFILL_ENABLE_EP": "true", "DECODE_ENABLE_DP": "true", "DECODE_MTP_SIZE": "3", "IBDEVICES": "rdma0,rdma1",
        "ROUTER_PORT": "31000", "BENCH_INPUT_LEN": "1024", "BENCH_OUTPUT_LEN": "8", "BENCH_MAX_CONCURRENCY": "8x16",
        "BENCH_REQUEST_RATE": "2.5", "BENCH_RANDOM_RANGE_RATIO": "1", "BENCH_NUM_PROMPTS_MULTIPLIER": "3",
        "EXTRA_SERVER_ARGS": "--enforce-eager --seed 7",
    }  # fmt: skip
    spec = read_spec(options={}, recipe=None, environ=environ, host=host)
    assert (spec.engine, spec.model, spec.model_dir, spec.model_path) == ("toy-disagg", "toy-model", "/m", "/m/x")
    assert (spec.prefill.workers, spec.decode.workers, spec.gpus_per_node) == (2, 1, 4)
    assert spec.nodes == tuple(Node(address=each) for each in ("10.0.0.1", "10.0.0.2", "fe80::1"))
    assert (spec.prefill.tp, spec.decode.tp, spec.prefill.mtp, spec.decode.mtp) == (4, 8, 3, 3)
    assert (spec.prefill.expert_parallel, spec.decode.expert_parallel) == (True, False)
    assert (spec.prefill.dp_attention, spec.decode.dp_attention) == (False, True)
    assert (spec.ib_devices, spec.router.port) == (("rdma0", "rdma1"), 31000)
    bench = spec.bench
    assert (bench.input_len, bench.output_len, bench.concurrency, bench.request_rate) == (1024, 8, (8, 16), "2.5")
    assert (bench.range_ratio, bench.prompts_multiplier) == (1.0, 3)
    assert spec.source("engine").where == "ENGINE"
    assert {source.layer for source in spec.sources.values()} == {Layer.CONTRACT}


SAMPLES = {"int": "2", "float": "0.5", "bool": "yes", "sizes": "2", "rate": "2", "nodes": "n0", "settings": "sizes=1"}
SAMPLES |= {"env": "NAME=x"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key_text)
def test_every_option_can_be_given_in_every_layer(host: Host, option: Option) -> None:
    special = {"engine": "toy-disagg", "model": "toy-model", "connector": "toy", "router.mode": "external"}
    text = special.get(option.key_text) or ("1.2" if option.form == "version" else SAMPLES.get(option.type, "x"))
    name, _, value = text.rpartition("=")
    variable = f"{option.variable}_{name.upper()}" if name else option.variable
    ways: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({option.dotted: text}, {}, option.flag),
        ({}, {variable: value}, variable),
        *(({}, {contract: text}, contract) for contract in option.contract),
    ]
    for options, environ, where in ways:
        base = {key: value for key, value in BASE.items() if key != option.key_text}
        spec = read_spec(options={**base, **options}, recipe=None, environ=environ, host=host)
        for field in option.fields:
            found = {source.where for path, source in spec.sources.items() if path.startswith(".".join(field))}
            assert where in found


def test_a_secret_that_is_given_with_its_value_is_refused_without_showing_it(host: Host) -> None:
    with pytest.raises(SpecError, match=r"'TOKEN' with a value is no name of a variable") as caught:
        read(host, {"secrets": "TOKEN=hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_run_file_can_be_named_by_a_variable(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "pack: true\n")
    assert read(host, environ={"DISAGG_RUN_RECIPE": str(recipe)}).pack


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ({"engine": None}, {}, "no engine is given: give --engine NAME, engine in a run file, or ENGINE"),
        ({"model": None}, {}, "no model is given: give --model NAME"),
        ({"engine": "toy-disag"}, {}, "--engine: unknown engine 'toy-disag': did you mean 'toy-disagg'?"),
        ({"engine": None}, {"ENGINE": "docker"}, "environment variable ENGINE: unknown engine 'docker'"),
        ({"connector": "toi"}, {}, "--connector: unknown connector 'toi'"),
        ({"prefill.workers": "0"}, {}, "--prefill: 0 is too small: at least 1"),
        ({"decode.workers": "-2"}, {}, "--decode: -2 is too small: at least 1"),
        ({"router.port": "70000"}, {}, "--router-port: 70000 is too large: at most 65535"),
        ({"router.mode": "none"}, {}, "--router: 'none' is not one of plan, external"),
        ({"nodes": "10.0.0.1:8000"}, {}, "--nodes: '10.0.0.1:8000' is neither an address nor a host name: write it"),
        ({"nodes": "a,a"}, {}, "--nodes: the node address 'a' stands twice"),
        ({"nodes": "a,,b"}, {}, "--nodes: '' is neither an address nor a host name"),
        ({"nodes": "300.1.1.1"}, {}, "--nodes: '300.1.1.1' is neither an address nor a host name"),
        ({"bench.concurrency": "8xx9"}, {}, "--concurrency: '8xx9' is no list of whole numbers such as 8x16x32"),
        ({"bench.request_rate": "-1"}, {}, "--request-rate: '-1' is neither a number above 0 nor inf"),
        ({"bench.range_ratio": "nan"}, {}, "--random-range-ratio: 'nan' is no number"),
        ({"args": "--a 'b"}, {}, '--args: "--a \'b" cannot be split into words: no closing quotation'),
        ({"env": "A"}, {}, "--env: 'A' is not NAME=VALUE"),
        ({"env": "1A=2"}, {}, "--env: '1A' is no name of a variable"),
        (
            {"env": "Decode:A=2"},
            {},
            "--env: 'Decode' is no target: use prefill, decode, router or the name of a process",
        ),
        ({"prefill.env": "decode:A=2"}, {}, "--prefill-env: 'decode:A=2' names a target"),
        ({"settings": "router:a=2"}, {}, "--set: 'router' is no target: use prefill, decode or all"),
        (
            {"settings": "blok_size=2"},
            {},
            "--set blok_size: toy-disagg with toy has no setting 'blok_size': did you mean",
        ),
        ({"settings": "tp=2"}, {}, "--set tp: toy-disagg with toy has no setting 'tp': it is an option: --tp"),
        ({"settings": "block_size=x"}, {}, "--set block_size: 'x' is no whole number: tokens in a block"),
        ({"settings": "dtype=int4"}, {}, "--set dtype: 'int4' is not one of fp8, bf16"),
        ({"settings": "graph={"}, {}, "--set graph: '{' is no JSON"),
        ({"model": ""}, {}, "--model: the text is empty"),
        ({"prefill.nope": "1"}, {}, "unknown option 'prefill.nope': did you mean 'prefill.nodes'?"),
        ({}, {"xP": "two"}, "environment variable xP: 'two' is no whole number"),
        (
            {},
            {"PREFILL_ENABLE_EP": "maybe"},
            "environment variable PREFILL_ENABLE_EP: 'maybe' is neither true nor false",
        ),
        ({}, {"BLOCK_SIZE": "x"}, "environment variable BLOCK_SIZE: 'x' is no whole number: tokens in a block"),
        ({"gpus_per_node": "9" * 30}, {}, f"--gpus-per-node: {'9' * 18}… is too large: it has 30 characters"),
        ({"bench.concurrency": "8x" + "9" * 5000}, {}, f"--concurrency: {'9' * 18}… is too large"),
        ({"nodes": "0.0.0.0"}, {}, "--nodes: '0.0.0.0' is the address of no node"),
        ({"nodes": "n0=::,n1"}, {}, "--nodes: '::' is the address of no node"),
        ({"image": "a b"}, {}, "--image: 'a b' is no image: a reference has no blanks"),
        ({"router.version": "x.y"}, {}, "--router-version: 'x.y' is no version: write it like 0.5.12"),
        ({"model_path": "~/m"}, {}, "--model-path: '~/m' begins with ~, which nothing expands"),
        ({}, {"MODEL_DIR": "~/m"}, "environment variable MODEL_DIR: '~/m' begins with ~, which nothing expands"),
        ({}, {"IBDEVICES": "rdma0,$(id)"}, "environment variable IBDEVICES: '$(id)' is no name of a device"),
        ({"secrets": "A-B"}, {}, "--secret: 'A-B' is no name of a variable: give the name alone"),
        ({}, {"DISAGG_RUN_DECODE_TP": "1.5"}, "environment variable DISAGG_RUN_DECODE_TP: '1.5' is no whole number"),
        (
            {},
            {"DISAGG_RUN_ENGIN": "x"},
            "environment variable DISAGG_RUN_ENGIN is not known: did you mean 'DISAGG_RUN_ENGINE'?",
        ),
        (
            {},
            {"DISAGG_RUN_SET_BLOK_SIZE": "1"},
            "environment variable DISAGG_RUN_SET_BLOK_SIZE: toy-disagg with toy has no",
        ),
        (
            {},
            {"DISAGG_RUN_SET": "a=1"},
            "environment variable DISAGG_RUN_SET does not say which: write DISAGG_RUN_SET_NAME=VALUE",
        ),
        ({}, {"DISAGG_RUN_RECIPE": "/nowhere/r.yaml"}, "the run file '/nowhere/r.yaml' does not exist"),
    ],
)
def test_a_bad_value_is_one_line_with_its_place(
    host: Host, options: dict[str, str], environ: dict[str, str], message: str
) -> None:
    assert message in refused(host, options, environ)


def test_reserved_variables_are_no_options(host: Host) -> None:
    assert read(host, environ={"DISAGG_RUN_TOKEN": "x", "DISAGG_RUN_DISABLE": "y"}).sources.keys() == {
        "engine",
        "model",
    }


def test_the_stand_ins_options_are_kept_by_target(host: Host, tmp_path: Path) -> None:
    recipe = write(tmp_path, "simulation: {all: --ttft-ms 5, decode-0: [--die-after, 3]}\n")
    spec = read(host, {"simulation": ["--ttft-ms 9", "decode-0:--code 7"], "simulate": True}, recipe=recipe)
    assert spec.simulate
    assert dict(spec.simulation) == {
        "all": ("--ttft-ms", "5", "--ttft-ms", "9"),
        "decode-0": ("--die-after", "3", "--code", "7"),
    }

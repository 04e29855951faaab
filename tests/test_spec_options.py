"""Every option in every layer, and bad values: one line with the place."""

from __future__ import annotations

import pytest

from disagg_run.errors import SpecError
from disagg_run.host import Host
from disagg_run.spec.option import Option
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec
from tests.spec_toy import BASE, read, refused, spec_host


@pytest.fixture(scope="module")
def host() -> Host:
    return spec_host()


SAMPLES = {
    "int": "2",
    "float": "0.5",
    "bool": "yes",
    "sizes": "2",
    "rate": "2",
    "nodes": "n0",
    "settings": "sizes=1",
    "env": "NAME=x",
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key_text)
def test_every_option_can_be_given_in_every_layer(host: Host, option: Option) -> None:
    special = {"engine": "toy-disagg", "model": "toy-model", "connector": "toy", "router.mode": "external"}
    of_form = {"version": "1.2", "mount": "/x"}
    text = special.get(option.key_text) or of_form.get(option.form) or SAMPLES.get(option.type, "x")
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
        ({"ib_devices": "rdma0,rdma0"}, {}, "--ib-devices: 'rdma0' stands twice in 'rdma0,rdma0'"),
        ({"ib_devices": "rdma0,,rdma1,"}, {}, "--ib-devices: 'rdma0,,rdma1,' has a comma with no name beside it"),
        ({"ib_devices": "rdma 0"}, {}, "--ib-devices: 'rdma 0' is no name of a device"),
        ({"ib_devices": ","}, {}, "--ib-devices: the list is empty"),
        ({"mtp": "99"}, {}, "--mtp: 99 is too large: at most 16"),
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
        ({}, {"DISAGG_RUN_RECIPE": "/nowhere/r.yaml"}, "the run file '/nowhere/r.yaml' cannot be read: no such file"),
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

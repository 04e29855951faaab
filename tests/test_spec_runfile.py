"""The run file: every fault has its file, line and key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import SpecError
from disagg_run.spec.layers import Assignment
from disagg_run.spec.model import Node
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.runfile import key_tree, run_file


def values(text: str) -> dict[str, object]:
    return {".".join(each.path): each.value for each in run_file(text, "r.yaml") if isinstance(each, Assignment)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml:1: the run file is empty"),
        ("- a\n", "r.yaml:1: a list stands where keys with values are expected"),
        ("\nengin: x\n", "r.yaml:2: unknown key 'engin': did you mean 'engine'?"),
        ("prefill:\n  workes: 2\n", "r.yaml:2: unknown key 'workes' below 'prefill': did you mean 'workers'?"),
        ("prefill: {workers: 2, osl: 1}\n", "r.yaml:1: unknown key 'osl' below 'prefill': it belongs at bench.osl"),
        ("zzz: 1\n", "r.yaml:1: unknown key 'zzz': known keys are args, bench,"),
        ("tp: 8\ntp: 4\n", "r.yaml:2: the key 'tp' stands already at r.yaml:1"),
        (
            "prefill:\n  dp-attention: true\n  dp_attention: true\n",
            "r.yaml:3: prefill.dp_attention: the key stands already",
        ),
        ("prefill: 2\n", "r.yaml:1: prefill: a single value stands where keys with values are expected"),
        ("prefill:\n", "r.yaml:1: prefill: nothing stands where keys with values are expected"),
        ("a: 1\n b: 2\n", "r.yaml:2: not valid YAML"),
        ("set: {}\n", "r.yaml:1: unknown key 'set': the option --set is settings in a run file"),
        ("prefill-tp: 8\n", "r.yaml:1: unknown key 'prefill-tp': the option --prefill-tp is prefill.tp in a run file"),
        ("isl: 8\n", "r.yaml:1: unknown key 'isl': the option --isl is bench.isl in a run file"),
        ("prefill:\n  tp: eight\n", "r.yaml:2: prefill.tp: 'eight' is no whole number"),
        ("prefill:\n  tp: 8.0\n", "r.yaml:2: prefill.tp: '8.0' is no whole number"),
        ("prefill:\n  tp: [8]\n", "r.yaml:2: prefill.tp: a list stands where one value is expected"),
        ("prefill:\n  tp:\n", "r.yaml:2: prefill.tp: there is no value: write one, or take the line out"),
        ("prefill:\n  workers: 0\n", "r.yaml:2: prefill.workers: 0 is too small: at least 1"),
        ("prefill:\n  ep: maybe\n", "r.yaml:2: prefill.ep: 'maybe' is neither true nor false"),
        ("router: {mode: off}\n", "r.yaml:1: router.mode: 'off' is not one of plan, external"),
        ("args: {--seed: 7}\n", "r.yaml:1: args: a mapping stands where one value is expected"),
        ("args:\n - --seed\n - [7]\n", "r.yaml:3: args.1: a list stands where one value is expected"),
        ('args: "--a \'b"\n', 'r.yaml:1: args: "--a \'b" cannot be split'),
        ("env: [A=1]\n", "r.yaml:1: env: a list stands where names with values are expected"),
        ("env:\n  A: ok\n  B-C: 1\n", "r.yaml:3: env.B-C: 'B-C' is no name of a variable"),
        ("env:\n  A: [1]\n", "r.yaml:2: env.A: a list stands where one value is expected"),
        ('env:\n  A: "\\0"\n', "r.yaml:2: env.A: '\\x00' holds a NUL character"),
        ('args: ["a\\0"]\n', "r.yaml:1: args: 'a\\x00' holds a NUL character"),
        ('env: {"A\\nB": 1}\n', "r.yaml:1: env.'A\\nB': 'A\\nB' is no name of a variable"),
        ("settings:\n  a:\n", "r.yaml:2: settings.a: there is no value"),
        ("nodes:\n  - a\n  - b:1\n", "r.yaml:3: nodes.1: 'b:1' is neither an address nor a host name"),
        ("nodes: [a, a]\n", "r.yaml:1: nodes: the node address 'a' stands twice"),
        ("nodes: [{name: a, adress: b}]\n", "r.yaml:1: unknown key 'adress' below 'nodes.0': did you mean 'address'?"),
        ("nodes: []\n", "r.yaml:1: nodes: the list of nodes is empty"),
        (
            "processes: {decode-0: {arg: x}}\n",
            "r.yaml:1: unknown key 'arg' below 'processes.decode-0': did you mean 'args'?",
        ),
        ("processes: {decode-0: {env: x}}\n", "r.yaml:1: processes.decode-0.env: a single value stands where names"),
        ("bench:\n  concurrency: [8, x]\n", "r.yaml:2: bench.concurrency: '8,x' is no list of whole numbers"),
        ("bench:\n  concurrency: 0x8\n", "r.yaml:2: bench.concurrency: 0 is too small"),
        ("simulation: {Decode: --x}\n", "r.yaml:1: simulation.Decode: 'Decode' is neither all nor a role"),
    ],
)
def test_a_fault_names_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        run_file(text, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_may_be_written_with_dashes_or_underscores() -> None:
    assert values("gpus_per_node: 4\nprefill: {dp-attention: on}\ndecode: {dp_attention: true}\n") == {
        "gpus_per_node": 4,
        "prefill.dp_attention": True,
        "decode.dp_attention": True,
    }


def test_scalars_count_as_they_are_written() -> None:
    assert values("engine-version: 0.10\nimage: 'a:1'\nbench: {request-rate: 2.50, isl: '10'}\n") == {
        "engine_version": "0.10",
        "image": "a:1",
        "bench.request_rate": "2.50",
        "bench.input_len": 10,
    }


def test_nodes_may_be_text_a_list_or_mappings() -> None:
    named = (Node(name="n0", address="10.0.0.1"), Node(name="n1", address="fd00::1"), Node(name="n2", address="n2"))
    assert values("nodes: 'n0=10.0.0.1,n1=[fd00::1],n2'\n")["nodes"] == named
    assert values("nodes: [n0=10.0.0.1, 'n1=fd00::1', n2]\n")["nodes"] == named
    mappings = "nodes:\n- {name: n0, address: 10.0.0.1}\n- {name: n1, address: 'fd00::1'}\n- {address: n2}\n"
    assert values(mappings)["nodes"] == named


def test_lists_may_be_text_or_lists() -> None:
    assert values("ib-devices: rdma0, rdma1\nbench: {concurrency: 8x16}\n") == values(
        "ib-devices: [rdma0, rdma1]\nbench: {concurrency: [8, 16]}\n"
    )


def test_every_option_has_a_key_that_is_read() -> None:
    samples = {"int": "2", "float": "0.5", "bool": "true", "sizes": "8x16", "rate": "2", "nodes": "n0", "env": "{A: b}"}
    samples |= {"settings": "{a: b}", "str": "plan"}
    for option in OPTIONS:
        text = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(option.key))
        sample = {"version": "1.2", "mount": "/x"}.get(option.form) or samples.get(option.type, "x")
        found = run_file(text.rstrip() + " " + sample + "\n", "r.yaml")
        assert {each.path[: len(option.fields[0])] for each in found} == set(option.fields)


KEYS = st.sampled_from(
    [*key_tree(), *[option.key[-1] for option in OPTIONS], "processes", "decode-0", "A", "b c", "a\nb"]
)
LEAVES = st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["x", "8x16", "--a b", "'", "A=1", ""])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_any_document_gives_assignments_or_one_line_with_its_place(data: dict[str, object]) -> None:
    message = ""
    try:
        run_file(json.dumps(data), "r.yaml")
    except SpecError as error:
        message = str(error)
    assert not message or (message.startswith("r.yaml:1: ") and "\n" not in message)

"""Master configs: whatever is wrong with an entry is one line with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_run import SpecError, plan
from disagg_run.spec.masterconfig import MasterConfig, read_master_config
from disagg_run.spec.masterconfig_point import model_name
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec
from disagg_run.yamlfile import read_yaml
from tests.master_entries import SPACE, entry, read, settings_of
from tests.parity.case import host


@pytest.fixture(autouse=True)
def _no_asking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for option in OPTIONS for name in option.contract} | {"DRY_RUN"}:
        monkeypatch.delenv(name, raising=False)


def refused(changes: Mapping[tuple[str | int, ...], Any], **environ: str) -> str:
    text = entry(changes)
    with pytest.raises(SpecError) as error:
        read(text, **environ)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("m.yaml:")
    number = int(message.split(":")[1])
    return text.splitlines()[number - 1].strip() + " | " + message


def test_the_base_of_these_tests_is_right() -> None:
    assert read(entry({})).engine == "atom-disagg"


def test_atom_where_atom_disagg_was_meant_is_one_line() -> None:
    message = refused({("framework",): "atom"})
    assert message.startswith("framework: atom | m.yaml:")
    assert "unknown engine 'atom': did you mean 'atom-disagg'?" in message


@pytest.mark.parametrize(
    ("changes", "line", "reason"),
    [
        (
            {(*SPACE, "prefill", "tp"): 16},
            "tp: 16",
            ": 16 is more than the 8 GPUs of a node: tp is of a node: for a worker",
        ),
        (
            {(*SPACE, "prefill", "num-worker"): 3, **settings_of("prefill", "PREFILL_NODES=1")},
            "tp: 8",
            "8 GPUs of 1 node cannot be shared evenly by 3 prefill workers",
        ),
        (
            {(*SPACE, "decode", "num-worker"): 2, **settings_of("decode", "DECODE_NODES=3")},
            "- DECODE_NODES=3",
            "2 decode workers cannot be spread evenly over 3 nodes",
        ),
        (
            {(*SPACE, "decode", "tp"): 4, **settings_of("decode", "DECODE_NODES=2")},
            "tp: 4",
            ": 4 of each of 2 nodes for 1 worker: a worker over several nodes has all 8 GPUs of each",
        ),
        (settings_of("decode", "DECODE_NODES=two"), "- DECODE_NODES=two", "'two' is no number of nodes"),
        ({(*SPACE, "decode", "tp"): "8"}, "tp: '8'", "'8' is no whole number of at least 1"),
        ({(*SPACE, "decode", "tp"): 0}, "tp: 0", "'0' is no whole number of at least 1"),
        ({(*SPACE, "decode", "ep"): 3}, "ep: 3", "ep is 3 with tp 8"),
        ({(*SPACE, "decode", "dp-attn"): "on"}, "dp-attn: 'on'", "'on' is neither true nor false"),
    ],
)
def test_sizes_that_fit_no_nodes_are_one_line_each(
    changes: Mapping[tuple[str | int, ...], Any], line: str, reason: str
) -> None:
    message = refused(changes)
    assert message.startswith(f"{line} | ")
    assert reason in message


def test_a_tp_is_held_against_the_nodes_that_there_are() -> None:
    assert "more than the 4 GPUs of a node" in refused({}, GPUS_PER_NODE="4")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MAX_NUM_SEQ=8", "m.yaml:21: MAX_NUM_SEQ: neither disagg-run nor atom-disagg with atom-mooncake reads"),
        ("PREFILL_NODE=1", "did you mean 'PREFILL_NODES'?"),
        ("PURPLE=1", "docs/environment.md lists those that are read"),
        ("DECODE_TP=8", "does not read this variable: it is the entry's own number, from which the job script makes"),
        ("MAX_NUM_SEQS", "'MAX_NUM_SEQS' is not KEY=VALUE"),
        ("max num=3", "'max num=3' is not KEY=VALUE"),
        ("MAX_NUM_SEQS=many", "MAX_NUM_SEQS: 'many' is no whole number"),
        ("KV_CACHE_DTYPE=fp7", "'fp7' is not one of bf16, fp8"),
        ("xP=2", "it sets prefill.workers, which the entry says itself"),
        ("PREFILL_TP_SIZE=4", "it sets prefill.tp, which the entry says itself"),
        ("DECODE_MTP_SIZE=2", "DECODE_MTP_SIZE=2 beside spec-decoding none"),
    ],
)
def test_an_additional_setting_that_is_no_variable_is_one_line(text: str, reason: str) -> None:
    message = refused(settings_of("prefill", text))
    assert message.startswith(f"- {text} | ")
    assert reason in message


@pytest.mark.parametrize(
    ("changes", "line", "reason"),
    [
        ({("precison",): "fp4"}, "precison: fp4", "unknown key 'precison': did you mean 'precision'?"),
        ({(*SPACE, "conc_list"): [4]}, "conc_list:", "unknown key 'conc_list': did you mean 'conc-list'?"),
        ({(*SPACE, "prefill", "tps"): 4}, "tps: 4", "unknown key 'tps': did you mean 'tp'?"),
        ({(*SPACE, "prefill", "tp"): ...}, "prefill:", "prefill: the key 'tp' is missing"),
        ({("model",): ...}, "one:", "the key 'model' is missing"),
        ({("model",): None}, "model: null", "model: one value is expected here"),
        ({("scenarios",): {"agentic-coding": []}}, "scenarios:", "no scenario 'fixed-seq-len'"),
        ({("scenarios",): {}}, "scenarios: {}", "(it has none)"),
        ({("scenarios", "fixed-seq-len"): []}, "fixed-seq-len: []", "a list with at least one item is expected"),
        ({(*SPACE, "conc-list"): 8}, "conc-list: 8", "a list with at least one item is expected"),
        ({(*SPACE, "conc-list"): [0]}, "- 0", "'0' is no whole number of at least 1"),
        ({(*SPACE, "spec-decoding"): "mtp"}, "- spec-decoding: mtp", "add DECODE_MTP_SIZE=N"),
        ({(*SPACE, "spec-decoding"): "draft"}, "- spec-decoding: draft", "is not one of none, mtp"),
        ({("disagg",): False}, "one:", "disagg is not true: take another entry"),
        ({("multinode",): ...}, "one:", "multinode is not true: take another entry"),
        ({("kv-p2p-transfer",): "mori"}, "kv-p2p-transfer: mori", "atom-disagg knows no KV transfer 'mori'"),
        ({("router",): {"name": "nginx"}}, "name: nginx", "atom-disagg starts another router than 'nginx'"),
        ({("router",): {"version": "1"}}, "router:", "the key 'name' is missing"),
    ],
)
def test_slips_in_an_entry_are_one_line_each(
    changes: Mapping[tuple[str | int, ...], Any], line: str, reason: str
) -> None:
    message = refused(changes)
    assert message.startswith(f"{line} | ")
    assert reason in message


def test_one_key_with_two_values_is_refused_and_with_one_value_taken_once() -> None:
    both = {**settings_of("prefill", "MEM_FRAC_STATIC=0.7"), **settings_of("decode", "MEM_FRAC_STATIC=0.8")}
    assert "MEM_FRAC_STATIC=0.8 stands here and MEM_FRAC_STATIC=0.7 at m.yaml:21" in refused(both)
    same = {**settings_of("prefill", "MEM_FRAC_STATIC=0.7"), **settings_of("decode", "MEM_FRAC_STATIC=0.7")}
    assert read(entry(same)).settings["gpu_memory_utilization"] == 0.7


def test_values_that_job_scripts_export_whatever_the_user_wants_count_as_unset_here_too() -> None:
    spec = read(entry(settings_of("prefill", "PREFILL_PORT=8010", "DECODE_MTP_SIZE=0", "BLOCK_SIZE=32")))
    assert dict(spec.settings) == {"block_size": 32}


def test_a_recipe_beside_an_entry_is_refused() -> None:
    config = MasterConfig(read_yaml(entry({}), "m.yaml"))
    point = config.choose("one").point(0)
    for more in ({"recipe": Path("r.yaml"), "environ": {}}, {"recipe": None, "environ": {"DISAGG_RUN_RECIPE": "r"}}):
        with pytest.raises(SpecError, match="both say what to run"):
            read_spec(options={}, host=host(), point=point, **more)


@pytest.mark.parametrize("text", ["[]", "", "a", "a: 1"])
def test_a_file_that_is_no_master_config_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"^m\.yaml"):
        read_master_config(file).choose(None)
    with pytest.raises(SpecError, match="cannot be read: no such file"):
        read_master_config(tmp_path / "none.yaml")


def test_models_of_a_hub_are_found_by_the_names_of_the_table() -> None:
    known = frozenset({"Toy-7B", "maker-Toy-8B"})
    assert model_name("maker/Toy-7B", known) == "Toy-7B"
    assert model_name("maker/Toy-8B", known) == "maker-Toy-8B"
    assert model_name("Toy-7B", known) == "Toy-7B"
    assert model_name("maker/Toy-9B", known) == "Toy-9B"
    with pytest.raises(
        SpecError, match=r"no model 'DeepSeek-V4-Pr' \(master config m\.yaml:3\): did you mean 'DeepSeek-V4-Pro'"
    ):
        plan(read(entry({("model",): "deepseek-ai/DeepSeek-V4-Pr"})), host=host())


PATHS = [
    ("image",),
    ("model",),
    ("framework",),
    ("multinode",),
    ("scenarios",),
    ("scenarios", "fixed-seq-len"),
    ("scenarios", "fixed-seq-len", 0),
    ("router",),
    ("kv-p2p-transfer",),
    SPACE,
    *((*SPACE, key) for key in ("spec-decoding", "conc-list", "prefill", "decode")),
    *((*SPACE, "prefill", key) for key in ("num-worker", "tp", "ep", "dp-attn", "additional-settings")),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 64) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_whatever_stands_somewhere_in_an_entry_is_taken_or_refused_in_one_line(
    path: tuple[str | int, ...], value: Any
) -> None:
    text = entry({path: value})
    message = ""
    try:
        read(text)
    except SpecError as error:
        message = str(error)
    assert "\n" not in message

"""Master-config entries: the plan of the environment that a job script makes of them, and one line for each slip."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_run import LaunchPlan, SpecError, plan
from disagg_run.cli.main import main
from disagg_run.spec.masterconfig import MasterConfig, read_master_config
from disagg_run.spec.masterconfig_point import model_name
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec
from disagg_run.yamlfile import read_yaml
from tests.parity.case import Case, host, load

FILE = Path(__file__).parent / "parity" / "master.yaml"

#: Parity cases with the entry and point that they come from.
ORIGINS = {
    "atom/dsv4_2p1d_dpa_tp8": ("dsv4-fp4-mi355x-atom-disagg", 0),
    "atom/dsv4_1p1d_tp8": ("dsv4-fp4-mi355x-atom-disagg", 1),
    "atom/kimi_1p2d_tp4_tp8": ("kimik2.5-fp4-mi355x-atom-disagg", None),
    "sglang/dsr1_fp8_1k1k_1p_tp8_1d_dep16_2nodes": ("dsr1-fp8-mi355x-sglang-disagg", 0),
    "sglang/dsr1_fp8_1p2d_tp8": ("dsr1-fp8-mi355x-sglang-disagg", 1),
    "sglang/dsr1_fp8_1p1d_tp4_tp8": ("dsr1-fp8-mi355x-sglang-disagg", 2),
    "sglang/dsr1_fp8_2p1d_dep8_mtp1": ("dsr1-fp8-mi355x-sglang-disagg-mtp", None),
    "vllm/minimax_m25_1p2d_ep8": ("minimaxm2.5-fp8-mi355x-vllm-disagg", None),
}
#: What is of the site and the job, not of the entry.
SITE = ("IPADDRS", "GPUS_PER_NODE", "MODEL_DIR", "IBDEVICES", "MORI_RDMA_TC")


@pytest.fixture(autouse=True)
def _no_asking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for option in OPTIONS for name in option.contract} | {"DRY_RUN"}:
        monkeypatch.delenv(name, raising=False)


def planned(case: Case, *, options: Mapping[str, str], **more: Any) -> LaunchPlan:
    version = {"engine_version": case.engine.version}
    asked = read_spec(options={**version, **options}, recipe=None, host=host(), **more)
    return plan(asked, case.facts(), host=host())


@pytest.mark.parametrize("name", ORIGINS)
def test_an_entry_gives_the_plan_of_the_environment_that_it_stands_for(name: str) -> None:
    case = load(name)
    entry, number = ORIGINS[name]
    point = read_master_config(FILE).entry(entry).point(number)
    site = {key: case.environ[key] for key in SITE}
    ours = planned(case, options={}, environ=site, point=point)
    # What the job script's environment does not say: the container's image, and the router's version.
    said = {each.path: each.text for each in point.assignments}
    extra = {"image": said["image",]}
    if ("router", "version") in said:
        extra["router.version"] = said["router", "version"]
    theirs = planned(case, options=extra, environ=case.environ)
    assert ours.to_json() == theirs.to_json()
    assert ours.ranks[0].node.address == case.data["ranks"][0]["ip"]


def test_every_value_of_an_entry_has_its_line() -> None:
    point = read_master_config(FILE).entry("dsr1-fp8-mi355x-sglang-disagg").point(0)
    spec = read_spec(options={}, recipe=None, environ={}, host=host(), point=point)
    lines = FILE.read_text(encoding="utf-8").splitlines()
    start = lines.index("dsr1-fp8-mi355x-sglang-disagg:")
    shown = {path: str(spec.source(path)) for path in ("model", "decode.tp", "decode.nodes", "connector")}
    assert all(text.startswith("run file master.yaml:") for text in shown.values())
    at = {path: int(text.partition(".yaml:")[2].partition(":")[0]) for path, text in shown.items()}
    assert "model: deepseek-ai" in lines[at["model"] - 1]
    assert "tp: 8" in lines[at["decode.tp"] - 1]
    assert "DECODE_NODES=2" in lines[at["decode.nodes"] - 1]
    assert "kv-p2p-transfer: mori" in lines[at["connector"] - 1]
    assert min(at.values()) > start
    assert shown["decode.tp"].endswith(": 8 GPUs of 2 nodes for 1 worker")


def test_later_layers_win_over_an_entry_and_it_wins_over_the_contract() -> None:
    point = read_master_config(FILE).entry("dsv4-fp4-mi355x-atom-disagg").point(1)
    environ = {"xP": "3", "MODEL_NAME": "MiniMax-M3-MXFP4", "DISAGG_RUN_ISL": "512"}
    spec = read_spec(options={"decode.workers": "2"}, recipe=None, environ=environ, host=host(), point=point)
    assert (spec.prefill.workers, spec.decode.workers) == (1, 2)
    assert (spec.model, spec.bench.input_len, spec.bench.output_len) == ("DeepSeek-V4-Pro", 512, 1024)
    remarks = [text for text, _ in spec.notices]
    assert len(remarks) == 2
    assert any("sets prefill.workers to '1'" in text and "xP says '3'" in text for text in remarks)


# --- what is wrong is one line -----------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "image": "rocm/atom:v1",
    "model": "deepseek-ai/DeepSeek-V4-Pro",
    "framework": "atom-disagg",
    "multinode": True,
    "disagg": True,
    "scenarios": {
        "fixed-seq-len": [
            {
                "isl": 8192,
                "osl": 1024,
                "search-space": [
                    {
                        "spec-decoding": "none",
                        "conc-list": [8],
                        "prefill": {"num-worker": 1, "tp": 8, "ep": 1, "dp-attn": False},
                        "decode": {"num-worker": 1, "tp": 8, "ep": 1, "dp-attn": False},
                    }
                ],
            }
        ]
    },
}
SPACE = ("scenarios", "fixed-seq-len", 0, "search-space", 0)


def entry(changes: Mapping[tuple[str | int, ...], Any]) -> str:
    """A file with one entry: BASE with the values at some paths replaced; ... takes a key out."""
    data = json.loads(json.dumps(BASE))
    for path, value in changes.items():
        below = data
        for part in path[:-1]:
            below = below[part]
        if value is ...:
            del below[path[-1]]
        else:
            below[path[-1]] = value
    return yaml.safe_dump({"one": data}, sort_keys=False)


def read(text: str, **environ: str) -> Any:
    config = MasterConfig(read_yaml(text, "m.yaml"))
    return read_spec(options={}, recipe=None, environ=environ, host=host(), point=config.entry("one").point(None))


def settings_of(role: str, *texts: str) -> dict[tuple[str | int, ...], Any]:
    return {(*SPACE, role, "additional-settings"): list(texts)}


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
            "tp 16 is more than the 8 GPUs of a node: tp is of a node: for a worker",
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
            "tp 4 of each of 2 nodes for 1 worker: a worker over several nodes has all 8 GPUs of each",
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
        SpecError, match=r"no model 'DeepSeek-V4-Pr' \(run file m\.yaml:3\): did you mean 'DeepSeek-V4-Pro'"
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


# --- the command line --------------------------------------------------------------------------------------------

RAN = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> RAN:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_entries_are_listed_with_their_points(ran: RAN) -> None:
    code, out, err = ran("plan", "--master-config", str(FILE))
    assert (code, err) == (0, "")
    assert "kimik2.5-fp4-mi355x-atom-disagg" in out
    assert out.splitlines()[-1] == "and 1 that are not disaggregated"
    rows = json.loads(ran("plan", "--master-config", str(FILE), "--format", "json")[1])
    assert [row["points"] for row in rows] == [2, 1, 3, 1, 1]


def test_every_point_of_an_entry_is_planned(ran: RAN) -> None:
    asked = ("plan", "--master-config", str(FILE), "--entry", "dsr1-fp8-mi355x-sglang-disagg")
    code, out, _ = ran(*asked)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["point", "0", "1", "2"]
    rows = json.loads(ran(*asked, "--format", "json")[1])
    assert [row["nodes"] for row in rows] == [3, 3, 2]
    one = LaunchPlan.from_json(ran(*asked, "--point", "1", "--format", "json")[1])
    assert one.digest == rows[1]["digest"]


def test_a_point_that_cannot_be_planned_is_shown_and_gives_the_exit_code(ran: RAN, tmp_path: Path) -> None:
    text = FILE.read_text(encoding="utf-8").replace("conc-list: [4, 8, 16, 32, 64, 128]", "conc-list: [4]")
    file = tmp_path / "m.yaml"
    file.write_text(text)
    nodes = ("--nodes", "10.0.0.1,10.0.0.2")
    code, out, _ = ran("plan", "--master-config", str(file), "--entry", "dsv4-fp4-mi355x-atom-disagg", *nodes)
    assert code == 5
    first, second = out.splitlines()[1:]
    assert "error: " in first
    assert "3 nodes" in first
    assert "sha256:" in second


def test_where_there_is_a_choice_one_line_says_of_what(ran: RAN) -> None:
    code, out, err = ran("--master-config", str(FILE), "--dry-run")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "choose one with --entry: dsv4-fp4-mi355x-atom-disagg, kimik2.5" in err
    code, _, err = ran("explain", "model", "--master-config", str(FILE), "--entry", "dsv4-fp4-mi355x-atom-disagg")
    assert (code, err.count("\n")) == (3, 1)
    assert "choose one with --point: 0 = 8192/1024 at 256x512" in err
    code, _, err = ran("plan", "--master-config", str(FILE), "--entry", "dsv4-fp4-mi355x-atom-disag")
    assert code == 3
    assert "did you mean 'dsv4-fp4-mi355x-atom-disagg'?" in err
    code, _, err = ran("plan", "--master-config", str(FILE), "--entry", "dsv4-fp4-mi355x-atom-disagg", "--point", "2")
    assert (code, "its points are 0 to 1" in err) == (3, True)
    code, _, err = ran("plan", "--entry", "x")
    assert (code, "name the file with --master-config" in err) == (2, True)


def test_a_value_of_an_entry_is_explained_by_its_line(ran: RAN) -> None:
    asked = ("--master-config", str(FILE), "--entry", "kimik2.5-fp4-mi355x-atom-disagg")
    out = ran("explain", "tp", *asked)[1]
    assert "run file master.yaml:" in out
    assert "4 GPUs of 1 node for 1 worker" in out

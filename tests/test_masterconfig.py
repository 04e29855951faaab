"""Master-config entries: the plan of the environment that a job script makes of them, and one line for each slip."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_run import LaunchPlan, plan
from disagg_run.cli.main import main
from disagg_run.spec.masterconfig import read_master_config
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.reading import read_spec
from tests.master_entries import SPACE, entry, settings_of
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
    assert all(text.startswith("master config master.yaml:") for text in shown.values())
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
    assert out.splitlines()[-1] == "and 1 that do not say disagg: true: dsr1-fp8-mi300x-sglang"
    rows = json.loads(ran("plan", "--master-config", str(FILE), "--format", "json")[1])
    assert [row["points"] for row in rows] == [2, 1, 3, 1, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "sglang-disagg"), "--engine says what to plan, and a list of a master config's entries plans no"),
        (("--waive", "x"), "--waive says what to plan"),
        (("--no-simulate",), "--simulate says what to plan"),
        (("--facts", "f.json"), "--facts says what to plan"),
        (("--python", "python3"), "--python says what to plan"),
        (("--recipe", "r.yaml"), "--recipe and --master-config both say what to run: use one"),
        (("--recipe", "r.yaml", "--entry", "dsv4-fp4-mi355x-atom-disagg"), "--recipe and --master-config both say"),
    ],
)
def test_a_list_of_entries_takes_no_option_that_it_would_not_show(words: tuple[str, ...], said: str, ran: RAN) -> None:
    code, out, err = ran("plan", "--master-config", str(FILE), *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"disagg-run: error: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "points", "reason"),
    [
        ({("framework",): "atom"}, 1, "framework: unknown engine 'atom': did you mean 'atom-disagg'?"),
        ({("modle",): "x"}, None, "unknown key 'modle': did you mean 'model'?"),
        ({("scenarios",): []}, None, "there is no scenario 'fixed-seq-len'"),
        ({(*SPACE, "prefill", "num-workers"): 1}, None, "unknown key 'num-workers': did you mean 'num-worker'?"),
        ({("disagg",): "yes"}, None, "disagg: 'yes' is neither true nor false"),
        ({("multinode",): ...}, None, "multinode is not true"),
        (settings_of("decode", "DECODE_MPT_SIZE=1"), 1, "did you mean 'DECODE_MTP_SIZE'?"),
    ],
)
def test_a_broken_entry_is_marked_in_the_list_and_gives_the_exit_code(
    changes: dict[tuple[str | int, ...], Any], points: int | None, reason: str, ran: RAN, tmp_path: Path
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(entry(changes) + entry({}).replace("one:", "two:", 1) + "three: {model: x}\n")
    code, out, err = ran("plan", "--master-config", str(file))
    assert (code, err) == (3, "")
    _, broken, good, last = out.splitlines()
    assert re.match(r"one .*  error: m\.yaml:\d+: ", broken)
    assert reason in broken
    assert good.split()[-1] == "1"
    assert last == "and 1 that do not say disagg: true: three"
    code, out, err = ran("plan", "--master-config", str(file), "--format", "json")
    rows = json.loads(out)
    assert [row["points"] for row in rows] == [points, 1]
    assert reason in rows[0]["error"]
    assert "error" not in rows[1]
    assert (code, err) == (3, "disagg-run: left out 1 that do not say disagg: true: three\n")


@pytest.mark.parametrize("more", [(), ("--entry", "dsr1-fp8-mi355x-sglang-disagg")])
def test_a_run_file_from_the_environment_beside_a_list_is_told_once(
    more: tuple[str, ...], ran: RAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGG_RUN_RECIPE", "r.yaml")
    code, out, err = ran("plan", "--master-config", str(FILE), *more)
    told = "environment variable DISAGG_RUN_RECIPE and --master-config both say what to run: use one"
    assert (code, out, err.count("\n"), told in err) == (2, "", 1, True)
    monkeypatch.setenv("DISAGG_RUN_RECIPE", "")
    assert ran("plan", "--master-config", str(FILE))[0] == 0


def test_a_point_is_written_in_one_way_in_the_list_and_in_messages(ran: RAN, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    changes = {(*SPACE, "spec-decoding"): "mtp", **settings_of("decode", "DECODE_MTP_SIZE=1")}
    data = yaml.safe_load(entry(changes))
    data["one"]["scenarios"]["fixed-seq-len"] *= 2
    file.write_text(yaml.safe_dump(data))
    out = ran("plan", "--master-config", str(file), "--entry", "one")[1]
    assert out.count("1x TP8+MTP") == 4
    assert ran("--dry-run", "--master-config", str(file))[2].count("prefill 1x TP8+MTP, decode 1x TP8+MTP") == 2


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
    assert "master config master.yaml:" in out
    assert "4 GPUs of 1 node for 1 worker" in out

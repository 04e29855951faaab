"""Bad input through the real command: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from tests.command_line import ASKED, refused, run


def test_an_unknown_engine_is_answered_with_the_nearest() -> None:
    line = refused("plan", "--engine", "atom-disag", "--model", "DeepSeek-V4-Pro", code=3)
    assert line.startswith("--engine: unknown engine 'atom-disag': did you mean 'atom-disagg'?")


def test_an_unknown_model_is_answered_with_those_of_the_table() -> None:
    line = refused("plan", "--engine", "atom-disagg", "--model", "DeepSeek-V4", code=3)
    assert "no model 'DeepSeek-V4' (command line --model)" in line
    assert "DeepSeek-V4-Pro, Kimi-K2.5-MXFP4" in line


@pytest.mark.parametrize(("option", "value"), [("--prefill", "0"), ("--decode", "-1")])
def test_fewer_than_one_worker_is_refused(option: str, value: str) -> None:
    assert refused(*ASKED, option, value, code=3) == f"{option}: {value} is too small: at least 1"


def test_more_workers_than_gpus_are_refused_with_the_arithmetic() -> None:
    line = refused(*ASKED, "--prefill", "8", "--decode", "1", "--tp", "1", "--nodes", "n0", code=5)
    assert "8 prefill workers of 1 GPU and 1 decode worker of 1 GPU need 2 nodes (9 GPUs), but 1 node is given" in line


def test_a_tensor_parallel_size_that_does_not_divide_is_refused() -> None:
    line = refused(*ASKED, "--tp", "12", code=5)
    assert "a prefill worker of 12 GPUs (tp 12) does not fit on one node of 8 GPUs" in line


def test_an_unknown_flag_in_extra_args_is_answered_with_the_nearest() -> None:
    line = refused(*ASKED, "--args=--max-num-seq 7", code=5)
    assert "has no flag '--max-num-seq' (command line --args)" in line
    assert "--max-num-seqs" in line


def test_a_flag_by_hand_that_the_engine_lacks_and_the_launch_has_as_an_option_is_answered_with_it() -> None:
    asked = ("plan", "--engine", "sglang-disagg", "--model", "DeepSeek-R1-0528", "--args=-tp 4")
    assert refused(*asked, code=5).endswith(
        "no flag '-tp' (command line --args): the launch's own option for it is --tp"
    )


@pytest.mark.parametrize(
    ("given", "how"),
    [("--args=--server-port 9000", "--set prefill_port=PORT"), ("--router-args=--port 9000", "--router-port PORT")],
)
def test_a_port_by_hand_is_answered_with_how_it_is_set(given: str, how: str) -> None:
    line = refused(*ASKED, given, code=5)
    assert line.endswith(f": leave it out and set the port by {how}, which tells everybody")


def test_nodes_elsewhere_are_no_nodes_of_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED[1:], "--nodes", "192.0.2.7,192.0.2.8", "--simulate"]) == 10
    line = capsys.readouterr().err
    assert "not this machine: 192.0.2.7, 192.0.2.8: leave the nodes out" in line
    assert "ip address add 192.0.2.7 dev lo" in line


def test_a_value_outside_a_flags_choices_is_refused_with_the_choices() -> None:
    line = refused(*ASKED, "--prefill-args=--kv_cache_dtype fp3", code=5)
    assert "--kv_cache_dtype (command line --prefill-args) does not take 'fp3'" in line
    assert "bf16, fp8" in line


def test_broken_json_in_a_flag_is_refused_with_its_column() -> None:
    line = refused(*ASKED, "--args", "--kv-transfer-config '{\"a\": }'", code=5)
    assert "the JSON of --kv-transfer-config (command line --args) is broken at column" in line


def test_an_unknown_key_in_a_run_file_is_answered_with_file_line_and_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("engine: atom-disagg\nprefill:\n  workes: 2\n")
    line = refused("plan", "--recipe", "r.yaml", code=3, cwd=tmp_path)
    assert line == "r.yaml:3: unknown key 'workes' below 'prefill': did you mean 'workers'?"


def test_a_duplicate_key_in_a_run_file_is_refused_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("engine: atom-disagg\nmodel: a\nengine: b\n")
    line = refused("plan", "--recipe", "r.yaml", code=3, cwd=tmp_path)
    assert line == "r.yaml:3: the key 'engine' stands already at r.yaml:1: keep one of the two"


def test_a_node_list_that_is_too_short_is_refused_with_the_count() -> None:
    line = refused(*ASKED, "--prefill", "2", code=5, IPADDRS="10.0.0.1,10.0.0.2")
    assert "need 3 nodes (24 GPUs), but 2 nodes are given" in line
    assert "environment contract IPADDRS" in line


def test_options_before_a_command_are_refused_with_the_right_order() -> None:
    line = refused("--engine", "atom-disagg", "--args", "--seed 7", "plan", "--model", "x", code=2)
    assert line == (
        "options stand before the command 'plan': "
        "put them behind it: disagg-run plan --engine atom-disagg --args '--seed 7'"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "--engin", "x"], 2, "unknown option '--engin': did you mean '--engine'?"),
        (["plan", "--zzz"], 2, "unknown option '--zzz': see disagg-run plan --help"),
        (
            ["plan", "--smoke", "3"],
            2,
            "unknown option '--smoke': it is an option of disagg-run without a command, disagg-run agent",
        ),
        (["--format", "yaml"], 2, "unknown option '--format': it is an option of disagg-run plan, disagg-run explain,"),
        (["plan", "--engine"], 2, "option '--engine' requires an argument: see disagg-run plan --help"),
        (
            ["explain", "--cudagraph-sizes"],
            2,
            "unknown option '--cudagraph-sizes': ask for a flag of the engine without",
        ),
        (["explain", *ASKED[1:], "blok-size"], 5, "nothing in the plan is called 'blok-size': did you mean '--block-"),
        (["plan", "extra"], 2, "got unexpected extra argument (extra): see disagg-run plan --help"),
        (["plam"], 2, "unknown command 'plam': did you mean 'plan'?"),
        (["launch-it"], 2, "unknown command 'launch-it': commands are plan, "),
        (["--smoke", "0"], 2, "invalid value for '--smoke': 0 is not in the range x>=1: see disagg-run --help"),
        (["plan", "--format", "xml"], 2, "invalid value for '--format': 'xml' is not one of"),
        (["plan", "--rank", "1"], 2, "--rank is for --format shell"),
        (["plan", "--format", "shell"], 2, "--format shell makes one script a rank: add --rank N, or --output DIR"),
        ([*ASKED, "--format", "shell", "--rank", "2"], 2, "the plan has no rank 2: its ranks are 0 to 1"),
        ([*ASKED, "--output", "/nonexistent/x"], 2, "cannot write '/nonexistent/x': no such file or directory"),
        (["plan"], 3, "no engine is given: give --engine NAME"),
        ([], 3, "no engine is given: give --engine NAME"),
        (["plan", "--engine", "atom-disagg"], 3, "no model is given: give --model NAME"),
        (["plan", "--recipe", "nowhere.yaml"], 3, "the run file 'nowhere.yaml' cannot be read: no such file"),
        (["plan", "--recipe", "."], 3, "the run file '.' cannot be read: is a directory"),
        (["engines", "nope"], 3, "unknown engine 'nope'"),
        (["models", "--engine", "nope"], 3, "unknown engine 'nope'"),
    ],
)
def test_each_refusal_is_one_line_with_its_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("DISAGG_RUN_") or name in ("ENGINE", "MODEL_NAME")]:
        monkeypatch.delenv(name)
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"disagg-run: error: {message}")
    assert captured.err.count("\n") == 1


def test_a_plan_without_nodes_is_shown_and_not_run(tmp_path: Path) -> None:
    ended = run(*ASKED[1:], cwd=tmp_path)
    assert ended.returncode == 10
    assert ended.stdout.startswith("engine  atom-disagg")
    assert ended.stderr.startswith(
        "disagg-run: error: the plan is not bound to nodes and cannot be run: name the nodes"
    )
    assert "Traceback" not in ended.stderr


def test_a_bad_variable_of_the_contract_is_named() -> None:
    assert refused(*ASKED, code=3, xP="two") == "environment variable xP: 'two' is no whole number"


def test_the_plan_is_the_same_bytes_in_any_directory_with_a_run_file(tmp_path: Path) -> None:
    outputs = set()
    for name, seed in (("a", "1"), ("b", "2")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "r.yaml").write_text("engine: atom-disagg\nmodel: DeepSeek-V4-Pro\nprefill: {workers: 2}\n")
        ended = run(
            "plan", "--recipe", str(folder / "r.yaml"), "--format", "json", cwd=folder, xP="1", PYTHONHASHSEED=seed
        )
        assert ended.returncode == 0
        assert "r.yaml:3 sets prefill.workers to '2', environment variable xP says '1'" in ended.stderr
        outputs.add(ended.stdout)
    assert len(outputs) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], [*ASKED, "--format", "json"], ["engines"]])
def test_help_and_plan_import_nothing_that_only_running_needs(arguments: list[str]) -> None:
    code = (
        "import sys; from disagg_run.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'structlog', 'rich', 'httpx', 'aiohttp', 'tenacity', 'asyncio', 'cattrs', 'psutil'};"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stderr.splitlines()[-1] == "0 []"
    assert ended.stdout


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (("--grace", "nan"), "from 0 to 3600"),
        (("--grace", "inf"), "from 0 to 3600"),
        (("--grace", "-1"), "from 0 to 3600"),
        (("--hang-timeout", "0"), "from 1 to 86400"),
        (("--join-timeout", "nan"), "from 1 to 86400"),
        (("--join-timeout", "soon"), "from 1 to 86400"),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_is_one(given: tuple[str, str], bounds: str) -> None:
    line = refused("agent", "--plan", "plan.json", "--rank", "0", *given, code=2)
    assert f"{given[0]}': {given[1]!r} is no number of seconds {bounds}" in line


def test_an_empty_path_of_the_run_is_refused() -> None:
    asked = [*ASKED[1:], "--simulate"]
    assert refused(*asked, "--run-dir", "", code=2) == "--run-dir names no file: leave it out, or give its path"
    said = "--recipe names no file: leave it out, or give the path of a YAML file"
    assert refused(*asked, "--recipe", "", code=2) == said
    assert refused(*asked, "--token-file", " ", code=2) == "--token-file names no file: leave it out, or give its path"


def test_a_dry_run_that_is_neither_yes_nor_no_starts_nothing() -> None:
    line = refused(*ASKED[1:], "--simulate", code=3, DRY_RUN="perhaps")
    assert line == "environment variable DRY_RUN: 'perhaps' is neither true nor false"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("block_size=-4", "-4 is too small: at least 1: tokens in one block of the KV cache"),
        ("gpu_memory_utilization=85", "85.0 is too large: at most 1: share of each GPU's memory"),
        ("server_timeout_s=-3", "-3.0 is too small: at least 1: seconds"),
        ("handshake_port=70000", "70000 is too large: at most 65535: first port"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_with_what_it_is(setting: str, said: str) -> None:
    name = setting.partition("=")[0]
    assert refused(*ASKED, "--set", setting, code=3).startswith(f"--set {name}: {said}")
    asked = refused(*ASKED, code=3, MEM_FRAC_STATIC="85")
    assert asked.startswith("environment variable MEM_FRAC_STATIC: 85.0 is too large: at most 1")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"a":' * 900 + "1" + "}" * 900, "is nested deeper than 40 levels"),
        ('{"a":' * 5000, "is nested deeper than 40 levels"),
        ("[" * 20000, "is nested deeper than 40 levels"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read: exceeds the limit (4300 digits)"),
    ],
)
def test_json_that_nobody_can_read_is_one_line(value: str, said: str) -> None:
    line = refused(*ASKED, "--args", f"--kv-transfer-config '{value}'", code=5)
    assert f"the JSON of --kv-transfer-config (command line --args) {said}" in line


def test_a_long_value_does_not_hide_the_remedy() -> None:
    line = refused(*ASKED, "--model", "x" * 50_000, code=3)
    assert len(line) == 3003
    assert line.endswith("MiniMax-M3-MXFP8")


def test_a_plan_document_of_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[" * 100_000)
    file = str(tmp_path / "plan.json")
    line = refused("agent", "--plan", file, "--rank", "0", code=3)
    assert line.startswith(f"the plan file {file!r} is no JSON: maximum recursion depth")


def test_a_flag_with_dashes_is_told_how_explain_takes_it() -> None:
    line = refused("explain", *ASKED[1:], "--server-port", code=2)
    assert line.endswith("did you mean '--router-port'? ask for a flag of the engine without its dashes, 'server-port'")


def test_a_command_that_lacks_its_own_command_is_one_short_line() -> None:
    assert refused("patches", code=2) == "a command is missing: see disagg-run patches --help"


def test_numbers_are_asked_for_in_plain_words() -> None:
    line = refused(*ASKED[1:], "--smoke", "x", code=2)
    assert line == "invalid value for '--smoke': 'x' is no whole number: see disagg-run --help"


@pytest.mark.parametrize("engine", ["vllm-disagg", "sglang-disagg", "atom-disagg"])
def test_a_model_path_that_looks_like_a_flag_is_refused_and_a_relative_one_is_not(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "DeepSeek-R1-0528" if engine == "sglang-disagg" else "Kimi-K2.5-MXFP4"
    asked = ["plan", "--engine", engine, "--model", model, "--model-path"]
    assert main([*asked, "-x"]) == 3
    told = "the model's path '-x' (command line --model-path) begins with a dash"
    assert told in capsys.readouterr().err
    assert main([*asked, "./-x"]) == 0

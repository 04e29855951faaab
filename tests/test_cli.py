"""Commands that succeed: what they print, and where."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import disagg_run
from disagg_run import LaunchPlan
from disagg_run.cli.main import COMMANDS, main
from disagg_run.host import DISABLE
from disagg_run.spec.option import REPEATABLE
from disagg_run.spec.options import OPTIONS
from disagg_run.testing.distributions import installed_plugin

ASKED = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro"]


@pytest.fixture(autouse=True)
def _no_asking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for option in OPTIONS for name in option.contract} | {"DRY_RUN"}
    for name in list(os.environ):
        if name in names or name.startswith("DISAGG_RUN_"):
            monkeypatch.delenv(name)


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What a command that ends with 0 puts on stdout and stderr."""
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out, captured.err


def test_help_shows_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "--help")
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", out, re.M)
    for option in OPTIONS:
        shown = option.flag.replace("--", "--[no-]", 1) if option.type == "bool" else option.flag
        assert re.search(rf"^  {re.escape(shown)}\b", out, re.M), shown
    for heading in {option.group for option in OPTIONS}:
        assert f"\n{heading}:\n" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, name, "--help")
    assert out.startswith(f"Usage: disagg-run {name} ")


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "--version")[0] == f"disagg-run {disagg_run.__version__}\n"


def test_a_plan_is_printed_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = ran(capsys, "plan", *ASKED, "--format", "json")
    plan = LaunchPlan.from_json(out)
    assert plan.process_names()[0] == "prefill-0"
    assert err == ""
    assert plan.digest in ran(capsys, "plan", *ASKED)[0]
    assert plan.digest in ran(capsys, "plan", *ASKED, "--format", "yaml")[0]
    assert ran(capsys, "plan", *ASKED, "--format", "shell", "--rank", "1")[0].startswith("#!")


def test_output_goes_to_files_in_the_form_of_their_suffix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, sources = tmp_path / "plan.json", tmp_path / "sources.json"
    assert ran(capsys, "plan", *ASKED, "--output", str(file), "--sources", str(sources))[0] == ""
    plan = LaunchPlan.from_json(file.read_bytes())
    table = json.loads(sources.read_text())
    assert table["digest"] == plan.digest
    assert "command line --engine" in table["sources"] or table["values"]
    out, _ = ran(capsys, "plan", *ASKED, "--format", "shell", "--output", str(tmp_path / "scripts"))
    scripts = out.splitlines()
    assert len(scripts) == len(plan.ranks)
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)


def test_every_option_is_taken_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for option in OPTIONS:
        given = [option.flag] if option.type == "bool" else [option.flag, "x"]
        # What cannot be parsed is complained of before anything is read, so the last word's complaint shows that the
        # words before it were taken.
        assert main(["plan", *given * (2 if option.type in REPEATABLE else 1), "--zzz"]) == 2
        assert "unknown option '--zzz'" in capsys.readouterr().err, option.flag


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = ran(capsys, *ASKED, "--simulate", "--dry-run")
    assert out == ran(capsys, "plan", *ASKED, "--simulate")[0]
    monkeypatch.setenv("DRY_RUN", "1")
    again, err = ran(capsys, *ASKED, "--simulate")
    assert again == out
    assert "nothing is started: the environment says DRY_RUN" in err
    assert not list(tmp_path.iterdir())


def test_engines_lists_what_is_healthy_and_what_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = ran(capsys, "engines")
    assert re.search(r"^engines\n(.*\n)*  atom-disagg +disagg-run ", out, re.M)
    assert re.search(r"^connectors\n(.*\n)*  atom-mooncake .*for atom-disagg: ", out, re.M)
    found = json.loads(ran(capsys, "engines", "--format", "json")[0])
    assert {"atom-disagg", "atom-mooncake"} <= {each["name"] for each in found["plugins"]}
    monkeypatch.setenv(DISABLE, "atom-disagg")
    assert "atom-disagg  disagg-run" not in ran(capsys, "engines")[0]
    assert main(["engines", "atom-disagg"]) == 3
    assert "disabled" in capsys.readouterr().err


def test_a_broken_plugin_is_listed_with_its_reason_and_an_error_where_it_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with installed_plugin(tmp_path, "broken-disagg", "import nothing_of_this_name\n"):
        out, _ = ran(capsys, "engines")
        assert re.search(r"^  atom-disagg +disagg-run ", out, re.M)
        assert re.search(r"^broken\n  .*'broken-disagg'.*nothing_of_this_name", out, re.M)
        (problem,) = json.loads(ran(capsys, "engines", "--format", "json")[0])["problems"]
        assert (problem["name"], problem["distribution"]) == ("broken-disagg", "broken-disagg-dist")
        assert main(["engines", "broken-disagg"]) == 4
        assert "nothing_of_this_name" in capsys.readouterr().err


def test_one_engine_is_shown_with_its_settings_and_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "engines", "atom-disagg")
    assert re.search(r"^  block_size +int +BLOCK_SIZE +tokens in one block", out, re.M)
    assert "atom-mooncake (default)" in out
    details = json.loads(ran(capsys, "engines", "atom-disagg", "--format", "json")[0])
    assert "DeepSeek-V4-Pro" in details["models"]
    settings = {each["name"]: each for each in details["settings"]}
    assert settings["block_size"]["variables"] == {"BLOCK_SIZE": None}
    assert "settings" in json.loads(ran(capsys, "engines", "atom-mooncake", "--format", "json")[0])


def test_models_are_listed_with_versions_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "models", "--engine", "atom-disagg")
    assert re.search(r"^DeepSeek-V4-Pro +atom-disagg +\S+ +\S+ +models\.yaml:\d+$", out, re.M)
    rows = json.loads(ran(capsys, "models", "--format", "json")[0])
    assert "atom-disagg" in {row["engine"] for row in rows}


def test_the_list_of_models_says_how_to_plan_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "models", "--engine", "vllm-disagg")
    assert out.endswith("takes any other model too, with its own defaults, under --waive unknown-model\n")
    asked = ("plan", "--engine", "vllm-disagg", "--model", "maker/Any-8B")
    assert main(asked) == 3
    assert "plugin" not in capsys.readouterr().err
    ran(capsys, *asked, "--waive", "unknown-model")


def test_a_value_is_explained_with_its_source_and_what_it_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "explain", *ASKED, "--set", "block_size=32", "decode:block-size", "http")
    assert "--block-size = 32  (decode-0)\n  set by    command line --set\n  replaces  16  from engine default" in out
    assert "http = 30000  (router)" in out
    alias, _ = ran(capsys, "explain", *ASKED, "decode:tensor-parallel-size")
    assert alias.startswith("-tp = 8  (decode-0)")
    answers = json.loads(ran(capsys, "explain", *ASKED, "--format", "json", "--", "--block-size")[0])
    assert answers[0]["processes"] == ["prefill-0", "decode-0"]
    assert answers[0]["source"] == "engine default (plugin atom-disagg)"


def test_each_question_is_answered_though_another_one_means_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        assert main(["explain", *ASKED, "--format", form, "--", "nope", "engine", "nix", "gpus"]) == 5
        out, err = capsys.readouterr()
        assert ("engine = atom-disagg" in out) is (form == "text")
        assert "gpus" in out
        assert [line.partition(": nothing in the plan is called ")[2][:6].strip(":") for line in err.splitlines()] == [
            "'nope'",
            "'nix'",
        ]


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("disagg_run.host.build_host", interrupted)
    assert main(["engines"]) == 130
    assert "Traceback" not in capsys.readouterr().err

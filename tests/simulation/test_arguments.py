"""The parser of stand-ins: it takes and refuses what the program does that the catalogue was taken from."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.simulation.arguments import StandInParser, Style, after_program, build_parser, read_catalogue

FLAGS: list[dict[str, Any]] = [
    {"names": ["--model"], "arity": 1, "type": "str"},
    {
        "names": ["--tensor-parallel-size", "-tp"],
        "arity": 1,
        "type": "int",
        "default": 1,
        "aliases": ["--tp_size"],
        "kind": "int",
    },
    {"names": ["--policy"], "arity": 1, "type": "str", "choices": ["random", "round_robin"]},
    {"names": ["--config"], "arity": 1, "type": "json.loads", "kind": "json"},
    {"names": ["--caching"], "arity": 0, "negatable": True, "default": True},
    {"names": ["--eager"], "arity": 0},
    {"names": ["--worker"], "arity": "1-2", "type": "str", "repeatable": True},
    {"names": ["--decode"], "arity": 1, "type": "str", "repeatable": True},
    {"names": ["--sizes"], "arity": "+", "type": "int", "kind": "int"},
    {"names": ["--tokens"], "arity": 1, "type": "human_readable_int", "kind": "size", "literals": ["auto"]},
    {"names": ["--layout"], "arity": 1, "type": "upper", "choices": ["ROW_MAJOR", "COLUMN_MAJOR"]},
    {"names": ["--extra"], "arity": 1, "type": "parse", "kind": "json_object"},
    {"names": ["--timeout"], "arity": 1, "type": "int", "kind": "int", "default": 1800},
    {"names": [], "positional": "model_tag", "arity": "?"},
]


def parser(style: Style = "argparse") -> StandInParser:
    return build_parser({"flags": FLAGS}, prog="toy-server", style=style)


def refusal(words: list[str], capsys: pytest.CaptureFixture[str], style: Style = "argparse") -> str:
    with pytest.raises(SystemExit) as ended:
        parser(style).parse_args(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_names_aliases_and_types_give_one_value() -> None:
    for name in ("--tensor-parallel-size", "-tp", "--tp_size"):
        assert parser().parse_args([name, "8"]).tensor_parallel_size == 8


def test_what_is_not_given_has_its_default() -> None:
    args = parser().parse_args([])
    assert (args.timeout, args.caching, args.eager) == (1800, True, False)


def test_negation_and_repetition() -> None:
    words = ["--no-caching", "--decode", "a", "--decode=b", "--worker", "u", "9", "--worker", "v", "--sizes", "1", "2"]
    args = parser().parse_args(words)
    assert (args.caching, args.decode, args.worker, args.sizes) == (False, ["a", "b"], [["u", "9"], ["v"]], [1, 2])


def test_positional_and_json() -> None:
    args = parser().parse_args(["some/model", "--config", '{"a": [1]}'])
    assert (args.model_tag, args.config) == ("some/model", {"a": [1]})


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("8k", 8000), ("8K", 8192), ("8Ki", 8192), ("1.5m", 1_500_000), ("auto", None)],
)
def test_sizes_have_suffixes_and_literals_count_as_not_given(text: str, number: int | None) -> None:
    assert parser().parse_args(["--tokens", text]).tokens == number


def test_choices_of_a_type_that_changes_text_are_taken_in_any_spelling() -> None:
    assert parser().parse_args(["--layout", "row-major"]).layout == "ROW_MAJOR"


@pytest.mark.parametrize(
    ("words", "last_line"),
    [
        (["m", "--no-such-flag", "3"], "unrecognized arguments: --no-such-flag 3"),
        (
            ["--tensor-parallel-size", "eight"],
            "argument --tensor-parallel-size/-tp/--tp_size: invalid int value",
        ),
        (["--policy", "best"], "argument --policy: invalid choice: 'best' (choose from"),
        (["--config", "{broken"], "argument --config: invalid loads value: '{broken'"),
        (["--model"], "argument --model: expected one argument"),
        (["--worker", "u", "1", "2"], "unrecognized arguments: 2"),
        (["--layout", "diagonal"], "argument --layout: invalid choice: 'diagonal' (choose from"),
        (["--extra", "[1]"], "argument --extra: invalid parse value: '[1]'"),
        (["--tokens", "many"], "argument --tokens: invalid human_readable_int value: 'many'"),
    ],
)
def test_errors_are_those_of_argparse(words: list[str], last_line: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = refusal(words, capsys)
    assert err.startswith("usage: toy-server ")
    assert err.splitlines()[-1].startswith(f"toy-server: error: {last_line}")


@pytest.mark.parametrize(
    ("words", "first_line"),
    [
        (["--no-such-flag"], "error: unexpected argument '--no-such-flag' found"),
        (
            ["--tensor-parallel-size", "x"],
            "error: invalid value 'x' for '--tp_size <VALUE>': invalid digit found in string",
        ),
        (["--policy", "best"], "error: invalid value 'best' for '--policy <VALUE>'"),
        (["--model"], "error: a value is required for '--model <VALUE>' but none was supplied"),
    ],
)
def test_errors_of_rust_programs_are_those_of_clap(
    words: list[str], first_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refusal(words, capsys, "clap")
    assert err.splitlines()[0] == first_line
    assert "Usage: toy-server [OPTIONS]" in err


def test_an_abbreviation_is_taken_by_argparse_and_refused_by_clap(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["--time", "3"]).timeout == 3
    assert "unexpected argument '--time'" in refusal(["--time", "3"], capsys, "clap")


def test_an_ambiguous_abbreviation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ambiguous option: --t could match" in refusal(["--t", "3"], capsys)


def test_words_after_the_program_are_found_behind_wrappers() -> None:
    argv = ["numactl", "-N", "0", "python3", "-m", "toy.server", "--port", "1"]
    assert after_program(argv, ["-m", "toy.server"]) == ["--port", "1"]


def test_another_program_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        after_program(["python3", "-m", "other"], ["-m", "toy.server"])
    assert ended.value.code == 127
    assert "python3 -m other: not found" in capsys.readouterr().err


_names = st.text(string.ascii_lowercase, min_size=1, max_size=8).map(lambda name: f"--x{name}")


@given(st.dictionaries(_names, st.integers() | st.text(max_size=20), max_size=6))
def test_values_reach_the_parser_unchanged(values: dict[str, int | str]) -> None:
    flags = [
        {"names": [name], "arity": 1, "type": kind, "kind": kind}
        for name, kind in ((name, "int" if isinstance(value, int) else "str") for name, value in values.items())
    ]
    words = [f"{name}={value}" for name, value in values.items()]
    found = vars(build_parser({"flags": flags}, prog="p").parse_args(words))
    assert found == {name[2:]: value for name, value in values.items()}


@pytest.mark.parametrize("package", ["disagg_atom", "disagg_sglang", "disagg_vllm"])
def test_every_catalogue_that_ships_gives_a_parser(package: str) -> None:
    module = __import__(package)
    files = sorted(Path(module.__file__ or "").parent.glob("catalogues/*.json"))
    assert files
    for file in files:
        document = read_catalogue(file)
        built = build_parser(document, prog=file.stem)
        for flag in document["flags"]:
            for name in [*flag.get("names", ()), *(flag.get("aliases") or ())]:
                assert name in built._option_string_actions, (file.name, name)

"""Flags against a catalogue: unknown, gone, deprecated, values of a wrong kind."""

from __future__ import annotations

import pytest

from disagg_run.declarations import GoneFlag
from disagg_run.errors import FlagError
from disagg_run.flags import check_flags
from disagg_run.records import flag
from tests.toy_flags import ENGINE, TOY, check, merged_of


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--blok-size", "1"], "python3 -m toy.server 1.4 has no flag '--blok-size' .*did you mean '--block-size'?"),
        (["--completely-different"], "has no flag '--completely-different'.*see python3 -m toy.server --help"),
        (["--no-eager"], "has no flag '--no-eager'"),
        (["--block", "1"], "short for --block-count or --block-size: write the whole name"),
        (["--tensor-par", "1"], "short for --tensor-parallel-size: write the whole name"),
        (["--dtype", "fp9"], "--dtype .* does not take 'fp9': did you mean 'fp8'. it takes bf16, fp8, fp4"),
        (["--block-size", "a"], "--block-size .* takes an integer, not 'a'"),
        (["--block-size", "1.5"], "takes an integer, not '1.5'"),
        (["--memory", "lots"], "takes a number, not 'lots'"),
        (["--max-len", "8q"], "takes an integer, or one with a suffix such as 8k, not '8q'"),
        (["--sizes", "1", "two"], "takes an integer, not 'two'"),
        (["--sizes"], "takes at least 1 value and has none"),
        (["--block-size"], "takes 1 value and has none: a value that begins with a dash is written --block-size=VALUE"),
        (["--eager", "true"], "--eager .* is a switch and takes no value, not 'true'"),
        (["--chunked=true"], "--chunked .* is a switch and takes no value"),
        (["--no-chunked=true"], "--no-chunked .* is a switch and takes no value"),
        (["--token", "a", "b"], "takes 0 to 1 values, not 2: 'a b'"),
        (["--peer", "a", "1", "2"], "takes 1 to 2 values, not 3"),
        (["--origins", "[1,"], "JSON of --origins .* is broken at column 4"),
        (["--kv-config", "[1]"], r"takes a JSON object, not '\[1\]'"),
        (["--kv-config", "text"], "JSON of --kv-config .* is broken at column 1"),
        (["--loader", "{x"], "JSON of --loader .* is broken at column 2"),
        (["--backend", "cuda"], "--backend .* does not take 'cuda'"),
    ],
)
def test_what_the_parser_would_refuse_is_an_error_that_names_flag_and_source(words: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message) as caught:
        check(*words)
    assert "command line --decode-args" in str(caught.value)
    assert str(caught.value).startswith("decode-0: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["-tp", "8", "--memory", "1e-3", "--max-len", "8k", "--dtype", "fp8"],
        ["--max-len", "auto", "--kv-config", "None", "--token", "--urls"],
        ["--max-len", "2Gi", "--loader", "plain", "--origins", "[]", "--mystery", "{anything"],
        ["--backend", "Deep-GEMM", "--no-chunked", "--sizes", "1", "-2"],
        ["--loader", '{"a": 1}', "--peer", "a", "1", "--peer", "b", "--block-size=-1"],
    ],
)
def test_what_the_parser_takes_passes_without_a_warning(words: list[str]) -> None:
    assert check(*words) == ()


def test_a_catalogue_of_another_version_only_warns_and_names_both_versions() -> None:
    (warning,) = check("--blok-size", "1", exact=False, version="1.9")
    assert "'--blok-size' (command line --decode-args) is not known" in warning
    assert "for version 1.9" in warning
    assert "those of python3 -m toy.server 1.4" in warning
    assert warning.endswith("the nearest that it has is '--block-size'")
    assert "decode-0" not in warning
    (warning,) = check("--dtype", "fp9", exact=False, version="1.9")
    assert "does not take 'fp9' in python3 -m toy.server 1.4; the plan is for version 1.9" in warning


def test_R5_a_flag_that_is_gone_is_an_error_that_names_its_successor() -> None:
    """A flag went with a release, and only the started engine said so."""
    gone = [GoneFlag(name="--cuda-bs", since="1.3", successor="--graph-bs"), GoneFlag(name="--balance", since="1.5")]
    with pytest.raises(FlagError, match=r"'--cuda-bs' .* gone since 1.3, .* for 1.4: write --graph-bs instead"):
        check("--cuda-bs", "1", gone=gone)
    with pytest.raises(FlagError, match=r"'--balance' .* gone since 1.5, .* for 1.6: leave it out"):
        check("--balance", gone=gone, exact=False, version="1.6")
    assert "is not known" in check("--balance", gone=gone, exact=False, version="1.4.1")[0]


def test_an_exact_catalogue_without_a_flag_names_the_successor_whatever_the_version_is_called() -> None:
    gone = [GoneFlag(name="--cuda-bs", since="1.3", successor="--graph-bs")]
    with pytest.raises(FlagError, match=r"has no flag '--cuda-bs' .*write --graph-bs instead"):
        check("--cuda-bs", "1", gone=gone, version="ffdf3bb5")


def test_a_deprecated_flag_is_a_warning_that_names_its_successor() -> None:
    (warning,) = check("--old-graph")
    assert "'--old-graph' (command line --decode-args) is deprecated" in warning
    assert warning.endswith("write --graph-mode=off instead")


def test_an_object_for_a_flag_that_takes_a_number_is_an_error() -> None:
    merged = merged_of(flag("--block-size", {"a": 1}, source=ENGINE))
    with pytest.raises(FlagError, match=r"--block-size .* takes no JSON object"):
        check_flags(merged, TOY, exact=True, gone=(), version="1.4", where="decode-0")


def test_without_a_catalogue_only_gone_flags_are_checked() -> None:
    merged = merged_of(typed=["--anything", "x"], catalogue=None)
    assert check_flags(merged, None, exact=False, gone=(), version="1", where="x") == ()
    gone = [GoneFlag(name="--anything", since="1")]
    with pytest.raises(FlagError, match=r"gone since 1"):
        check_flags(merged, None, exact=False, gone=gone, version="1", where="x")

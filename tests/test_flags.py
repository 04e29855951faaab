"""Flags: words to records and back, merging by layer, checking against a catalogue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import GoneFlag
from disagg_run.errors import ConflictError, FlagError
from disagg_run.flags import MergedFlag, check_flags, merge_flags, render, split_words
from disagg_run.records import Flag, flag
from disagg_run.sources import Layer, Source

ENGINE = Source(layer=Layer.ENGINE, plugin="toy-disagg")
TABLE = Source(layer=Layer.MODEL, plugin="toy-disagg", where="models.yaml:41")
CONNECTOR = Source(layer=Layer.CONNECTOR, plugin="toy-kv")
SITE = Source(layer=Layer.SITE, plugin="site-a")
OTHER_SITE = Source(layer=Layer.SITE, plugin="site-b")
CONTRACT = Source(layer=Layer.CONTRACT, where="MAX_NUM_SEQS")
RUN_FILE = Source(layer=Layer.RUN_FILE, where="run.yaml:7")
TYPED = Source(layer=Layer.COMMAND_LINE, where="--decode-args")

TOY = Catalogue(
    {
        "command": "python3 -m toy.server",
        "version": "1.4",
        "flags": [
            {"names": [], "positional": "model", "arity": "?"},
            {"names": ["--tensor-parallel-size", "-tp"], "aliases": ["--tp-size"], "arity": 1, "kind": "int"},
            {"names": ["--block-size"], "arity": 1, "kind": "int", "default": 16},
            {"names": ["--block-count"], "arity": 1, "kind": "int"},
            {"names": ["--memory"], "arity": 1, "kind": "float"},
            {"names": ["--max-len"], "arity": 1, "kind": "size", "literals": ["auto"]},
            {"names": ["--dtype"], "arity": 1, "kind": "str", "choices": ["bf16", "fp8", "fp4"]},
            {"names": ["--backend"], "arity": 1, "choices": ["deep_gemm", "triton"]},
            {"names": ["--quantization", "-q"], "arity": 1, "kind": "str"},
            {"names": ["--chunked"], "aliases": ["--chunk-ed"], "arity": 0, "negatable": True},
            {"names": ["--eager"], "arity": 0},
            {"names": ["--sizes"], "arity": "+", "kind": "int"},
            {"names": ["--urls"], "arity": "*", "kind": "str"},
            {"names": ["--token"], "arity": "?", "kind": "str"},
            {"names": ["--kv-config", "-kv"], "arity": 1, "kind": "json_object", "literals": ["None"]},
            {"names": ["--origins"], "arity": 1, "kind": "json"},
            {"names": ["--loader"], "arity": 1, "kind": "json_or_text"},
            {"names": ["--peer"], "arity": "1-2", "kind": "str", "repeatable": True},
            {"names": ["--old-graph"], "arity": 0, "deprecated": True, "successor": "--graph-mode=off"},
            {"names": ["--mystery"], "arity": 1, "type": "parse_mystery"},
        ],
    }
)


def merged_of(*flags: Flag, typed: Sequence[str] = (), catalogue: Catalogue | None = TOY) -> tuple[MergedFlag, ...]:
    return merge_flags([*flags, *split_words(typed, catalogue, TYPED)], catalogue, where="decode-0")


def argv_of(*flags: Flag, typed: Sequence[str] = (), catalogue: Catalogue | None = TOY) -> tuple[str, ...]:
    return render(merged_of(*flags, typed=typed, catalogue=catalogue))


def check(*typed: str, exact: bool = True, version: str = "1.4", gone: Sequence[GoneFlag] = ()) -> tuple[str, ...]:
    return check_flags(merged_of(typed=typed), TOY, exact=exact, gone=gone, version=version, where="decode-0")


# --- words into flags --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--block-size", "16"], [("--block-size", ("16",))]),
        (["--block-size=16", "--eager"], [("--block-size", ("16",)), ("--eager", ())]),
        (["--sizes", "1", "2", "-3", "--eager"], [("--sizes", ("1", "2", "-3")), ("--eager", ())]),
        (["--memory", "-.5"], [("--memory", ("-.5",))]),
        (["--memory", "-1e-5"], [("--memory", ("-1e-5",))]),
        (["-qfp8"], [("-q", ("fp8",))]),
        (["-q", "fp8", "-tp", "4"], [("-q", ("fp8",)), ("-tp", ("4",))]),
        (["--token", "--eager"], [("--token", ()), ("--eager", ())]),
        (["--urls", "", "a b"], [("--urls", ("", "a b"))]),
        (["--loader=--x=y"], [("--loader", ("--x=y",))]),
        (["--unknown", "a", "b", "--eager"], [("--unknown", ("a", "b")), ("--eager", ())]),
        (["--loader", "- a list", "--eager"], [("--loader", ("- a list",)), ("--eager", ())]),
    ],
)
def test_words_become_flags(words: list[str], flags: list[tuple[str, tuple[str, ...]]]) -> None:
    split = split_words(words, TOY, TYPED)
    assert [(flag.name, flag.values) for flag in split] == flags
    assert all(flag.source == TYPED for flag in split)


@pytest.mark.parametrize("words", [["stray"], ["--block-size=16", "stray"]])
def test_a_word_that_belongs_to_no_flag_is_an_error_with_its_place(words: list[str]) -> None:
    with pytest.raises(FlagError, match=r"the word 'stray'.*command line --decode-args.*write --flag VALUE"):
        split_words(words, TOY, TYPED)


def test_a_lone_double_dash_is_an_error() -> None:
    with pytest.raises(FlagError, match=r"'--'.*is no flag name"):
        merged_of(typed=["--eager", "--", "x"])


def test_extra_words_are_kept_for_the_check_to_refuse() -> None:
    with pytest.raises(FlagError, match=r"--block-size .* takes 1 value, not 2: '16 32'"):
        check("--block-size", "16", "32")


def test_dotted_words_set_keys_of_a_json_flag() -> None:
    words = ["--kv-config.role", "producer", "-kv.extra.ports=[1,2]", "--kv-config.extra.on", "true"]
    assert argv_of(typed=words) == ("--kv-config", '{"role":"producer","extra":{"ports":[1,2],"on":true}}')


def test_dotted_words_with_plus_add_to_a_list() -> None:
    words = ["--kv-config.nics+", "a", "--kv-config.nics+=b,c", "--kv-config.x", "1"]
    assert argv_of(typed=words) == ("--kv-config", '{"nics":["a","b","c"],"x":1}')


def test_a_dotted_word_of_a_flag_that_takes_no_json_is_an_unknown_flag() -> None:
    with pytest.raises(FlagError, match=r"has no flag '--block-size\.x'"):
        check("--block-size.x", "1")


@pytest.mark.parametrize("words", [["--kv-config.role"], ["--kv-config.role", "a", "b"], ["--kv-config.", "a"]])
def test_a_dotted_word_needs_a_key_and_one_value(words: list[str]) -> None:
    with pytest.raises(FlagError, match=r"--kv-config\."):
        split_words(words, TOY, TYPED)


# --- merging -----------------------------------------------------------------------------------------------------


def test_a_later_layer_replaces_whatever_the_order_and_says_what_it_replaced() -> None:
    late, early, middle = flag("--block-size", 64, source=TYPED), flag("--block-size", 16, source=ENGINE), None
    middle = flag("--block-size", 32, source=TABLE)
    for flags in ([early, middle, late], [late, early, middle], [middle, late, early]):
        (merged,) = merged_of(*flags)
        assert (merged.values, merged.source) == (("64",), TYPED)
        assert merged.replaced == ((TABLE, "32"), (ENGINE, "16"))


def test_aliases_are_one_flag_and_the_winner_keeps_its_spelling() -> None:
    assert argv_of(flag("--tp-size", 8, source=ENGINE), typed=["-tp", "4"]) == ("-tp", "4")


def test_a_negation_is_the_same_flag() -> None:
    (merged,) = merged_of(flag("--chunked", source=ENGINE), typed=["--no-chunk-ed"])
    assert (merged.name, merged.values, merged.replaced) == ("--no-chunk-ed", (), ((ENGINE, "--chunked"),))


def test_without_a_catalogue_entry_a_name_stands_for_itself() -> None:
    typed = ["--no-x", "--x", "--a_b", "1", "--a-b", "2"]
    assert argv_of(typed=typed) == argv_of(typed=typed, catalogue=None) == tuple(typed)


def test_a_parser_that_reads_underscores_as_dashes_has_one_flag_for_both() -> None:
    document = {"version": "1", "underscores": True, "flags": [{"names": ["--block-size"], "arity": 1}]}
    words = ["--block_size", "1", "--block-size", "2", "--other_flag", "--other-flag"]
    assert argv_of(typed=words, catalogue=Catalogue(document)) == ("--block-size", "2", "--other_flag", "--other-flag")


def test_flags_stand_in_the_order_in_which_they_first_appear() -> None:
    flags = [flag("--eager", source=ENGINE), flag("--memory", 0.5, source=ENGINE), flag("--eager", source=TYPED)]
    assert argv_of(*flags, typed=["--sizes", "1"]) == ("--eager", "--memory", "0.5", "--sizes", "1")


def test_two_plugins_of_one_layer_that_differ_are_an_error_naming_both_and_both_values() -> None:
    with pytest.raises(ConflictError) as caught:
        merged_of(flag("--tp-size", 8, source=SITE), flag("-tp", 4, source=OTHER_SITE))
    message = str(caught.value)
    assert message.startswith(
        "decode-0: plugins 'site-a' and 'site-b' set --tp-size to different values: 8 (site plugin"
    )
    assert "and 4 (site plugin" in message


def test_two_plugins_that_agree_are_no_error() -> None:
    assert argv_of(flag("--tp-size", 8, source=SITE), flag("-tp", 8, source=OTHER_SITE)) == ("--tp-size", "8")


def test_a_plugin_that_switches_on_and_one_that_switches_off_are_a_conflict() -> None:
    with pytest.raises(ConflictError, match=r"--chunked .*--no-chunked "):
        merged_of(flag("--chunked", source=SITE), flag("--no-chunked", source=OTHER_SITE))


def test_one_plugin_that_sets_a_flag_twice_is_an_error_naming_it() -> None:
    with pytest.raises(ConflictError, match=r"plugin 'toy-disagg' sets --block-size to different values: 16 .* and 32"):
        merged_of(*split_words(["--block-size", "16", "--block-size", "32"], TOY, TABLE))


def test_a_value_of_the_users_own_settles_a_conflict_between_plugins() -> None:
    (merged,) = merged_of(
        flag("-tp", 8, source=SITE), flag("-tp", 4, source=OTHER_SITE), flag("-tp", 2, source=RUN_FILE)
    )
    assert merged.values == ("2",)
    assert set(merged.replaced) == {(SITE, "8"), (OTHER_SITE, "4")}


def test_a_flag_typed_twice_narrows_and_nothing_is_lost() -> None:
    (merged,) = merged_of(typed=["--block-size", "16", "--block-size", "32"])
    assert (merged.values, merged.replaced) == (("32",), ((TYPED, "16"),))


def test_repeatable_flags_keep_every_occurrence_of_every_layer_in_order() -> None:
    flags = [flag("--peer", "http://a", 1, source=ENGINE), flag("--peer", "http://b", source=TYPED)]
    assert argv_of(*flags, typed=["--peer", "http://a", "1"]) == (
        *("--peer", "http://a", "1"),
        *("--peer", "http://b"),
        *("--peer", "http://a", "1"),
    )


def test_b41_an_override_of_other_flags_drops_none_that_the_plugin_needs() -> None:
    """An override replaced the whole list and lost the launcher's own port."""
    own = [flag("--port", 8020, source=ENGINE), flag("--memory", 0.9, source=TABLE)]
    assert argv_of(*own, typed=["--memory", "0.5"]) == ("--port", "8020", "--memory", "0.5")


def test_b66_a_default_does_not_beat_the_recipe_and_both_are_told() -> None:
    """A fallback of 1 was appended after the recipe's 256, and the last one won."""
    (merged,) = merged_of(flag("--block-size", 256, source=RUN_FILE), flag("--block-size", 1, source=ENGINE))
    assert (merged.values, merged.replaced) == (("256",), ((ENGINE, "1"),))


@pytest.mark.parametrize("name", ["block-size", "--block-size=16", "--a b", "--", "-", "--a\nb", ""])
def test_what_is_no_flag_name_is_refused(name: str) -> None:
    with pytest.raises(FlagError, match=r"is no flag name"):
        merged_of(Flag(name, ("1",), source=ENGINE))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("a\0b",), "NUL"),
        (("\ud800",), "surrogate"),
        (("--",), "read as a flag"),
        (("a", "-b"), "read as a flag"),
    ],
)
def test_a_value_that_no_command_line_can_carry_is_refused(values: tuple[str, ...], why: str) -> None:
    with pytest.raises(FlagError, match=why):
        merged_of(Flag("--urls", values, source=ENGINE))


# --- JSON --------------------------------------------------------------------------------------------------------


def kv(source: Source, **keys: Any) -> Flag:
    return flag("--kv-config", keys, source=source)


def test_json_objects_merge_by_key_with_a_source_for_each_leaf() -> None:
    (merged,) = merged_of(
        kv(CONNECTOR, role="producer", extra={"port": 6301, "nics": ["a"]}),
        kv(SITE, extra={"tc": 96}),
        flag("-kv", '{"extra": {"port": 7000}, "role": "consumer"}', source=TYPED),
    )
    assert merged.json == {"role": "consumer", "extra": {"port": 7000, "nics": ["a"], "tc": 96}}
    assert merged.leaf_sources == {
        "role": TYPED,
        "extra.port": TYPED,
        "extra.nics": CONNECTOR,
        "extra.tc": SITE,
    }
    assert merged.source == TYPED
    assert set(merged.replaced) == {(CONNECTOR, 'role="producer"'), (CONNECTOR, "extra.port=6301")}
    assert render([merged]) == ("-kv", '{"role":"consumer","extra":{"port":7000,"nics":["a"],"tc":96}}')


def test_a_leaf_may_have_a_source_of_its_own() -> None:
    given = attrs.evolve(kv(CONNECTOR, role="x", port=1), leaf_sources={"port": CONTRACT})
    (merged,) = merged_of(kv(SITE, port=2), given)
    assert merged.json == {"port": 1, "role": "x"}
    assert merged.leaf_sources == {"port": CONTRACT, "role": CONNECTOR}
    assert merged.replaced == ((SITE, "port=2"),)


def test_two_plugins_that_differ_in_a_leaf_are_an_error_naming_the_leaf() -> None:
    with pytest.raises(ConflictError, match=r"'site-a' and 'site-b' set --kv-config .*extra\.port=1 .*extra\.port=2"):
        merged_of(kv(SITE, extra={"port": 1, "a": 0}), kv(OTHER_SITE, extra={"port": 2, "b": 0}))


def test_a_number_and_a_truth_value_differ_although_python_holds_them_equal() -> None:
    with pytest.raises(ConflictError, match=r"read=1 .*read=true"):
        merged_of(kv(SITE, read=1), kv(OTHER_SITE, read=True))


def test_an_object_and_another_value_replace_each_other_as_a_whole() -> None:
    (merged,) = merged_of(kv(CONNECTOR, role="x"), typed=["--kv-config", "None"])
    assert (merged.json, merged.values, merged.replaced) == (None, ("None",), ((CONNECTOR, 'role="x"'),))
    (merged,) = merged_of(kv(ENGINE, extra=1), kv(CONNECTOR, extra={"a": 1}))
    assert (merged.json, merged.replaced) == ({"extra": {"a": 1}}, ((ENGINE, "extra=1"),))
    with pytest.raises(ConflictError, match=r"'site-a' and 'site-b'"):
        merged_of(kv(SITE, extra=1), kv(OTHER_SITE, extra={"a": 1}))


def test_an_object_for_a_flag_of_unknown_type_still_merges_with_typed_text() -> None:
    flags = [flag("--mystery", {"a": 1}, source=CONNECTOR)]
    assert argv_of(*flags, typed=["--mystery", '{"b": 2}']) == ("--mystery", '{"a":1,"b":2}')


def test_text_of_a_flag_that_takes_no_json_stays_as_typed() -> None:
    assert argv_of(typed=["--mystery", '{"b": 2}']) == ("--mystery", '{"b": 2}')


@pytest.mark.parametrize("given", [(), (kv(CONNECTOR, role="x"),)])
def test_broken_json_is_an_error_with_flag_source_and_position(given: tuple[Flag, ...]) -> None:
    with pytest.raises(FlagError) as caught:
        merged_of(*given, typed=["--kv-config", "{kv_role: kv_producer}"])
    message = str(caught.value)
    assert "--kv-config (command line --decode-args) is broken at column 2, near '{kv_role: kv_producer'" in message


def test_a_key_that_stands_twice_in_typed_json_is_an_error() -> None:
    with pytest.raises(FlagError, match=r"has the key 'a' twice"):
        merged_of(typed=["--kv-config", '{"x": {"a": 1, "a": 2}}'])


def test_a_plugins_object_that_is_no_json_is_an_error_naming_it() -> None:
    with pytest.raises(FlagError, match=r"--kv-config .*plugin toy-kv.* is no JSON"):
        merged_of(kv(CONNECTOR, role=object()))


def test_a_key_with_a_dot_stands_in_quotes_among_the_leaves() -> None:
    (merged,) = merged_of(kv(CONNECTOR, **{"a.b": {"c": 1}}))
    assert dict(merged.leaf_sources) == {'"a.b".c': CONNECTOR}


def test_r12_json_and_lists_keep_their_quotes() -> None:
    """JSON and list values lost their quotes on the way to the engine."""
    typed = ["--origins", '["*"]', "--kv-config", '{"k": "a \\"b\\" \\n \u00e9 $HOME"}', "--mystery", "[1,2]"]
    argv = argv_of(typed=typed)
    assert argv[:2] == ("--origins", '["*"]')
    assert json.loads(argv[3]) == {"k": 'a "b" \n \u00e9 $HOME'}
    assert argv[4:] == ("--mystery", "[1,2]")


def test_a_lone_surrogate_in_json_is_escaped_since_no_argv_could_carry_it() -> None:
    (_, text) = argv_of(typed=["--kv-config", '{"k": "\\ud800"}'])
    assert text.isascii()
    assert json.loads(text) == {"k": "\ud800"}


# --- checking ----------------------------------------------------------------------------------------------------


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


def test_r5_a_flag_that_is_gone_is_an_error_that_names_its_successor() -> None:
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

"""Flags: words to records and back, merging by layer, checking against a catalogue."""

from __future__ import annotations

import pytest

from disagg_run.catalogue import Catalogue
from disagg_run.errors import ConflictError, FlagError
from disagg_run.flags import split_words
from disagg_run.records import Flag, flag
from tests.toy_flags import ENGINE, OTHER_SITE, RUN_FILE, SITE, TABLE, TOY, TYPED, argv_of, check, merged_of

# --- words into flags -------------------------------------------------------------------------------------------------


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


# --- merging ----------------------------------------------------------------------------------------------------------


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


def test_B41_an_override_of_other_flags_drops_none_that_the_plugin_needs() -> None:
    """An override replaced the whole list and lost the launcher's own port."""
    own = [flag("--port", 8020, source=ENGINE), flag("--memory", 0.9, source=TABLE)]
    assert argv_of(*own, typed=["--memory", "0.5"]) == ("--port", "8020", "--memory", "0.5")


def test_B66_a_default_does_not_beat_the_recipe_and_both_are_told() -> None:
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

"""Catalogues: reading them, looking flags up, picking the one for a version, and what the package ships."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import disagg_atom
import disagg_sglang
import disagg_vllm
from disagg_run.catalogue import KINDS, Catalogue, load_catalogue, pick_catalogue, read_catalogue
from disagg_run.declarations import CatalogueRef
from disagg_run.errors import PluginError
from disagg_run.flags import check_flags, merge_flags, render, split_words
from disagg_run.records import Flag
from disagg_run.sources import Layer, Source

PACKAGES = (disagg_atom, disagg_sglang, disagg_vllm)
FILES = sorted(file for each in PACKAGES for file in (Path(str(each.__file__)).parent / "catalogues").glob("*.json"))
#: Flags (positionals not counted) that each program's own parser had when its catalogue was taken.
FLAG_COUNTS = {
    "atom-openai-server": 58,
    "atomesh": 64,
    "sglang-launch-server-0.5.9": 331,
    "sglang-launch-server-0.5.12": 387,
    "sglang-launch-server-0.5.14": 420,
    "sglang-launch-server-0.5.16": 460,
    "sglang-launch-server-0.5.19": 503,
    "sglang-launch-server-0.5.23": 531,
    "sglang-router-0.3.2": 98,
    "vllm-router-0.1.17": 71,
    "vllm-serve-0.22.1": 261,
    "vllm-serve-0.23.0": 261,
    "vllm-serve-0.28.0": 284,
    "vllm-serve-0.32.0": 316,
}


def toy(*flags: dict[str, Any], **head: Any) -> Catalogue:
    return Catalogue({"command": "toy", "version": "1", **head, "flags": list(flags)})


def shipped(stem: str) -> Catalogue:
    return read_catalogue(next(file for file in FILES if file.stem == stem))


# --- looking up --------------------------------------------------------------------------------------------------


def test_a_flag_is_found_by_every_spelling_and_is_always_the_same_record() -> None:
    catalogue = toy({"names": ["--size", "-s"], "aliases": ["--si_ze"], "arity": 1}, {"names": ["--other"], "arity": 0})
    spec = catalogue.lookup("--size")
    assert spec is not None
    assert spec.name == "--size"
    assert all(catalogue.lookup(name) is spec for name in ("-s", "--si_ze", "--size=4"))
    assert catalogue.lookup("--si-ze") is None
    assert catalogue.lookup("--siz") is None


def test_a_negatable_switch_is_found_by_its_negation() -> None:
    catalogue = toy({"names": ["--a_b"], "aliases": ["--a-b"], "arity": 0, "negatable": True})
    spec = catalogue.lookup("--no-a-b")
    assert spec is not None
    assert spec is catalogue.lookup("--a_b")
    assert spec.names == ("--a_b", "--a-b")
    assert catalogue.is_negation("--no-a_b")
    assert not catalogue.is_negation("--a-b")


def test_only_a_parser_that_says_so_reads_underscores_as_dashes() -> None:
    assert toy({"names": ["--a-b"], "arity": 0}).lookup("--a_b") is None
    catalogue = toy({"names": ["--a-b"], "arity": 0}, underscores=True)
    assert catalogue.lookup("--a_b") is catalogue.lookup("--a-b") is not None


@pytest.mark.parametrize(
    ("arity", "least", "most"),
    [(0, 0, 0), (1, 1, 1), (3, 3, 3), ("?", 0, 1), ("*", 0, None), ("+", 1, None), ("1-2", 1, 2)],
)
def test_arities(arity: Any, least: int, most: int | None) -> None:
    spec = toy({"names": ["--x"], "arity": arity}).lookup("--x")
    assert spec is not None
    assert (spec.min_values, spec.max_values) == (least, most)


def test_the_nearest_flag_is_first_one_that_the_name_may_be_short_for() -> None:
    catalogue = toy({"names": ["--size-in-bytes"], "arity": 1}, {"names": ["--sise"], "arity": 1})
    assert catalogue.nearest("--size") == "--size-in-bytes"
    assert catalogue.longer("--size") == ("--size-in-bytes",)
    assert catalogue.nearest("--syse") == "--sise"
    assert catalogue.nearest("--quite-another") is None


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no flag catalogue"),
        ("[]", "is no flag catalogue"),
        ('{"schema": 1}', "is no flag catalogue"),
        ('{"schema": 1, "version": "1", "flags": [3]}', "is no flag catalogue"),
        ('{"schema": 9, "version": "1", "flags": []}', "is of schema 9"),
    ],
)
def test_a_file_that_is_no_catalogue_is_an_error_naming_it(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "toy-1.json"
    file.write_text(text)
    with pytest.raises(PluginError, match=rf"toy-1\.json' {message}"):
        load_catalogue(CatalogueRef(program="server", version="1", file=file))


def test_a_missing_catalogue_is_an_error_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"toy\.json' cannot be read: no such file"):
        load_catalogue(CatalogueRef(program="server", version="1", file=tmp_path / "toy.json"))


@pytest.mark.parametrize("flag", [{"names": ["--x"], "arity": "url [port]"}, {"names": ["--x"], "kind": "parse_x"}])
def test_a_record_outside_the_schema_is_an_error_naming_the_flag(flag: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match="'--x'"):
        toy(flag).lookup("--x")


def test_a_catalogue_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "toy.json"
    file.write_text('{"schema": 1, "version": "1", "flags": []}')
    ref = CatalogueRef(program="router", version="1", file=file)
    assert load_catalogue(ref) is load_catalogue(ref)
    assert load_catalogue(ref).program == "router"


# --- picking -----------------------------------------------------------------------------------------------------


@pytest.fixture
def refs(tmp_path: Path) -> list[CatalogueRef]:
    found = []
    for version in ("0.5.9", "0.5.12", "0.5.23"):
        file = tmp_path / f"{version}.json"
        file.write_text(json.dumps({"schema": 1, "version": version, "flags": []}))
        found.append(CatalogueRef(program="server", version=version, file=file))
    return found


@pytest.mark.parametrize(
    ("version", "picked", "exact"),
    [
        ("0.5.12", "0.5.12", True),
        ("0.5.12+rocm7", "0.5.12", True),
        ("v0.5.12", "0.5.12", True),
        ("0.5.12.post1", "0.5.12", False),
        ("0.5.10", "0.5.9", False),
        ("0.6", "0.5.23", False),
        ("0.5.24rc1", "0.5.23", False),
        ("0.4", "0.5.9", False),
        ("main", "0.5.9", False),
    ],
)
def test_the_catalogue_for_a_version(refs: list[CatalogueRef], version: str, picked: str, exact: bool) -> None:
    found = pick_catalogue(reversed(refs), "server", version)
    assert found is not None
    assert (found[0].version, found[1]) == (picked, exact)


def test_a_version_that_is_no_release_is_exact_only_by_its_text(refs: list[CatalogueRef]) -> None:
    odd = CatalogueRef(program="server", version="ffdf3bb5", file=refs[0].file)
    found = pick_catalogue([*refs, odd], "server", "ffdf3bb5")
    assert found is not None
    assert found[1]


def test_a_program_without_a_catalogue_has_none(refs: list[CatalogueRef]) -> None:
    assert pick_catalogue(refs, "router", "0.5.12") is None


# --- what is shipped ---------------------------------------------------------------------------------------------


def test_every_catalogue_is_shipped() -> None:
    assert {file.stem for file in FILES} == set(FLAG_COUNTS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_catalogue_is_complete_and_within_the_schema(file: Path) -> None:
    catalogue = read_catalogue(file)
    specs = catalogue.flags()
    assert len(specs) == FLAG_COUNTS[file.stem]
    assert catalogue.version in file.stem or catalogue.source.startswith("ROCm/ATOM")
    document = json.loads(file.read_text())
    names = [name for flag in document["flags"] for name in (*flag["names"], *flag.get("aliases", []))]
    assert len(set(names)) == len(names)
    for flag in document["flags"]:
        known = {"names", "aliases", "positional", "arity", "metavar", "type", "kind", "literals", "choices", "default"}
        assert set(flag) <= known | {"negatable", "repeatable", "deprecated", "successor", "note"}
        assert flag["arity"] == 0 or flag.get("kind") in KINDS or flag["type"] == "<lambda>"


@pytest.mark.parametrize(
    ("stem", "name", "wanted"),
    [
        ("atomesh", "--prefill", {"min_values": 1, "max_values": 2, "repeatable": True}),
        ("atom-openai-server", "--no-enable_prefix_caching", {"name": "--enable_prefix_caching", "default": True}),
        ("atom-openai-server", "--no-enable-prefix-caching", {"name": "--enable_prefix_caching"}),
        ("atom-openai-server", "--kv_transfer_config", {"name": "--kv-transfer-config", "kind": "json_object"}),
        ("atom-openai-server", "--dp-load-balance", {"choices": (), "default": None}),
        ("atom-openai-server", "-tp", {"name": "--tensor-parallel-size", "kind": "int"}),
        ("vllm-serve-0.32.0", "--kv_transfer_config", {"name": "--kv-transfer-config", "kind": "json_object"}),
        ("vllm-serve-0.32.0", "--max-model-len", {"kind": "size", "literals": ("auto",)}),
        ("vllm-serve-0.32.0", "--no-enable-prefix-caching", {"name": "--enable-prefix-caching"}),
        ("vllm-serve-0.32.0", "-cc", {"name": "--compilation-config", "kind": "json_object"}),
        ("vllm-router-0.1.17", "--prefill", {"min_values": 1, "max_values": None, "repeatable": True}),
        ("sglang-router-0.3.2", "--port", {"default": 30000}),
        ("sglang-launch-server-0.5.14", "--cuda-graph-bs", {"deprecated": True, "successor": "--cuda-graph-bs-decode"}),
        ("sglang-launch-server-0.5.12", "--max-total-tokens", {"kind": "size"}),
        ("sglang-launch-server-0.5.23", "--no-dllm-fdfo", {"name": "--dllm-fdfo"}),
    ],
)
def test_what_the_real_parsers_say_of_some_flags(stem: str, name: str, wanted: dict[str, Any]) -> None:
    spec = shipped(stem).lookup(name)
    assert spec is not None
    assert {key: getattr(spec, key) for key in wanted} == wanted


def test_R5_a_flag_of_one_release_is_gone_in_a_later_one() -> None:
    """R5 and R6: flags that the reference launchers pass are unknown to later releases."""
    for name in ("--cuda-graph-bs", "--prefill-round-robin-balance"):
        assert shipped("sglang-launch-server-0.5.12").lookup(name) is not None
        assert shipped("sglang-launch-server-0.5.23").lookup(name) is None


# --- cost --------------------------------------------------------------------------------------------------------


def test_a_thousand_commands_of_fifty_flags_are_merged_and_checked_in_a_second() -> None:
    catalogue = shipped("sglang-launch-server-0.5.23")
    source = Source(layer=Layer.ENGINE, plugin="toy")
    kinds = {"int": "8", "str": "x", "float": "0.5"}
    chosen = [spec for spec in catalogue.flags() if spec.kind in kinds and not spec.choices and spec.max_values == 1]
    flags = [Flag(spec.name, (kinds[str(spec.kind)],), source=source) for spec in chosen[:50]]
    typed = Source(layer=Layer.COMMAND_LINE)
    began = time.process_time()
    for index in range(1024):
        words = split_words(["--tp-size", "8", "--port", str(index)], catalogue, typed)
        merged = merge_flags([*flags, *words], catalogue, where="decode-0")
        check_flags(merged, catalogue, exact=True, gone=(), version="0.5.23", where="decode-0")
        render(merged)
    assert time.process_time() - began < 1.5  # 0.3 s where this was written

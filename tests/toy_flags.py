"""A toy catalogue, sources of every layer, and commands made with them."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import GoneFlag
from disagg_run.flags import MergedFlag, check_flags, merge_flags, render, split_words
from disagg_run.records import Flag
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

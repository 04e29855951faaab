"""Real argparse parsers, built from the JSON of catalogues without ``disagg_run``'s own reading of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import disagg_atom
import disagg_sglang
import disagg_vllm
from disagg_run.catalogue import Catalogue

TOY = {
    "version": "1",
    "flags": [
        {"names": [], "positional": "model", "arity": "?"},
        {"names": ["--size", "-s"], "aliases": ["--si_ze"], "arity": 1, "kind": "int"},
        {"names": ["-tp", "--tp-size"], "arity": 1, "kind": "str"},
        {"names": ["--ratio"], "arity": 1, "kind": "float"},
        {"names": ["--text"], "arity": 1, "kind": "str"},
        {"names": ["--text-two"], "arity": 2, "kind": "str"},
        {"names": ["--maybe"], "arity": "?", "kind": "str"},
        {"names": ["--some"], "arity": "+", "kind": "str"},
        {"names": ["--any"], "arity": "*", "kind": "int"},
        {"names": ["--on"], "arity": 0},
        {"names": ["--switch"], "aliases": ["--swi_tch"], "arity": 0, "negatable": True},
        {"names": ["--both", "--no-both"], "arity": 0, "negatable": True},
        {"names": ["--pick"], "arity": 1, "kind": "str", "choices": ["a", "b c", "-d"]},
        {"names": ["--conf"], "arity": 1, "kind": "json"},
        {"names": ["--object"], "arity": 1, "kind": "json_object"},
        {"names": ["--peer"], "arity": "+", "kind": "str", "repeatable": True},
        {"names": ["--one-peer"], "arity": 1, "kind": "str", "repeatable": True},
    ],
}


def shipped() -> dict[str, Mapping[str, Any]]:
    folders = [
        Path(str(package.__file__)).parent / "catalogues" for package in (disagg_atom, disagg_sglang, disagg_vllm)
    ]
    return {file.stem: json.loads(file.read_text()) for folder in folders for file in sorted(folder.glob("*.json"))}


DOCUMENTS = {"toy": TOY, **shipped()}
CATALOGUES = {name: Catalogue(document) for name, document in DOCUMENTS.items()}


class Refused(Exception):
    """What the real parser said."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def option_names(flag: Mapping[str, Any]) -> list[str]:
    names = [*flag["names"], *flag.get("aliases", [])]
    if flag.get("negatable"):
        names = [name for name in names if "--" + name.removeprefix("--no-") not in names or "--no-" not in name]
    return names


def parser_of(document: Mapping[str, Any]) -> Parser:
    parser = Parser(add_help=False)
    kinds: dict[str, Any] = {"int": int, "float": float, "json": json.loads, "json_object": json.loads}
    for flag in document["flags"]:
        names = option_names(flag) or [flag["positional"]]
        convert = kinds.get(flag.get("kind"), str)
        options: dict[str, Any] = {"dest": names[0]} if flag["names"] else {}
        if flag.get("negatable"):
            options["action"] = argparse.BooleanOptionalAction
        elif flag["arity"] == 0:
            options["action"] = "store_true"
        else:
            nargs = {1: None, "1-2": "+"}.get(flag["arity"], flag["arity"])
            options |= {"nargs": nargs, "type": convert}
            if flag.get("repeatable"):
                options["action"] = "append"
            if "choices" in flag:
                options["choices"] = [convert(choice) for choice in flag["choices"]]
        parser.add_argument(*names, **options)
    return parser


PARSERS = {name: parser_of(document) for name, document in DOCUMENTS.items()}

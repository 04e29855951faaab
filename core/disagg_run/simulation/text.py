"""Deterministic text: the same prompt gives the same answer on every stand-in, so that a caller can check it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")
_WORD = re.compile(r"\w+|[^\w\s]")

#: Least and most tokens of an answer that ends by itself.
_SHORTEST, _LONGEST = 32, 287


def prompt_text(prompt: Any) -> str:
    """One text for any prompt that the completions API takes: text, token ids, or a list of one of these."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and len(prompt) == 1 and not isinstance(prompt[0], int):
        return prompt_text(prompt[0])
    return json.dumps(prompt, ensure_ascii=False)


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """One text for the messages of a chat, roles included."""
    return "\n".join(f"{message.get('role', '')}: {_content(message.get('content'))}" for message in messages)


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = (part.get("text", "") for part in content if isinstance(part, Mapping))
    return "".join(str(part) for part in parts)


def count_tokens(prompt: Any) -> int:
    """How many tokens a prompt counts: ids as they are, text by words and marks; at least one."""
    if isinstance(prompt, str):
        return max(1, len(_WORD.findall(prompt)))
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, Sequence):
        return sum(count_tokens(part) for part in prompt)
    return 1


def token_ids(text: str) -> list[int]:
    """The tokens of a prompt as numbers, one a word or mark."""
    return [
        int(hashlib.sha256(word.encode("utf-8", "surrogatepass")).hexdigest()[:4], 16) for word in _WORD.findall(text)
    ]


def digest(text: str) -> str:
    """A short digest of a prompt, for telling one KV transfer from another."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def token(text: str, index: int) -> str:
    """The token with that index of the answer to the prompt ``text``: a word, with a blank before it."""
    drawn = hashlib.blake2b(f"{digest(text)}:{index}".encode(), digest_size=4).digest()
    return " " + "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in drawn[: 2 + drawn[3] % 2])


def natural_length(text: str) -> int:
    """After how many tokens the answer to ``text`` ends by itself, where nothing cuts it."""
    return _SHORTEST + int(digest(text)[:8], 16) % (_LONGEST - _SHORTEST + 1)


def answer(text: str, tokens: int) -> str:
    """The first ``tokens`` tokens of the answer to the prompt ``text``, as one text."""
    return "".join(token(text, index) for index in range(tokens))

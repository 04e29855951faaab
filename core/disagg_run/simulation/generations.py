"""One completions or chat request: read, checked, and answered in OpenAI's shape."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from disagg_run.simulation import text

Kind = Literal["text", "chat"]

_MOST_TOKENS = 2**20


class RequestError(Exception):
    """A request is answered with an error; ``status`` is the HTTP status, ``kind`` the error's ``type``."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.status}}


@attrs.frozen(kw_only=True)
class Generation:
    """One request for text."""

    kind: Kind
    #: The request's own id: its ``x-request-id`` where it has one.
    request_id: str
    #: The ``model`` it names, else the server's.
    model: str
    #: The prompt as one text; the answer follows from it.
    prompt: str
    prompt_tokens: int
    #: Tokens to generate, already cut to where the answer ends by itself.
    tokens: int
    finish_reason: Literal["stop", "length"]
    stream: bool
    include_usage: bool
    choices: int
    echo: bool
    #: The body as it came, for the keys by which routers join prefill and decode.
    body: Mapping[str, Any]
    created: int

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object of the body, empty where there is none; RequestError (400) where it is something else."""
        value = self.body.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RequestError(400, f"{name!r} must be an object, got {value!r}")
        return value

    @property
    def digest(self) -> str:
        """What stands for the KV of this prompt."""
        return text.digest(self.prompt)


def read_generation(kind: Kind, raw: bytes, *, request_id: str = "", default_model: str = "") -> Generation:
    """A request from its body; RequestError (400) where it is none."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise RequestError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is no JSON object")
    prompt, prompt_tokens = _prompt(kind, body)
    default = 16 if kind == "text" else None
    limit = _number(body, "max_completion_tokens") or _number(body, "max_tokens") or default
    tokens, finish = _length(body, prompt, limit)
    if tokens > _MOST_TOKENS:
        raise RequestError(400, f"{tokens} tokens are more than a stand-in generates ({_MOST_TOKENS})")
    options = body.get("stream_options") or {}
    return Generation(
        kind=kind,
        request_id=request_id or uuid.uuid4().hex,
        model=str(body.get("model") or default_model),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        finish_reason=finish,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")) if isinstance(options, dict) else False,
        choices=_number(body, "n") or 1,
        echo=kind == "text" and bool(body.get("echo")),
        body=body,
        created=int(time.time()),
    )


def _prompt(kind: str, body: Mapping[str, Any]) -> tuple[str, int]:
    if kind == "chat":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
            raise RequestError(400, "'messages' must be a list of objects with 'role' and 'content'")
        prompt = text.chat_text(messages)
        return prompt, text.count_tokens(prompt)
    given = body.get("prompt")
    if given is None or given in ("", []):
        raise RequestError(400, "'prompt' must not be empty")
    return text.prompt_text(given), text.count_tokens(given)


def _number(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(400, f"{name!r} must be an integer of at least 1, got {value!r}")
    return value


def _length(body: Mapping[str, Any], prompt: str, limit: int | None) -> tuple[int, Literal["stop", "length"]]:
    natural = text.natural_length(prompt)
    least = body.get("min_tokens")
    if isinstance(least, int):
        natural = max(natural, least)
    if limit is not None and (body.get("ignore_eos") or limit < natural):
        return limit, "length"
    return natural, "stop"


# --- answers -----------------------------------------------------------------------------------------------------


def whole_answer(generation: Generation, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is not streamed; ``extra`` are further top-level keys."""
    content = text.answer(generation.prompt, generation.tokens)
    choices: list[dict[str, Any]] = []
    for index in range(generation.choices):
        choice: dict[str, Any] = {"index": index, "finish_reason": generation.finish_reason, "logprobs": None}
        if generation.kind == "chat":
            choice["message"] = {"role": "assistant", "content": content, "reasoning_content": None, "tool_calls": None}
        else:
            choice["text"] = generation.prompt + content if generation.echo else content
        choices.append(choice)
    name = "chat.completion" if generation.kind == "chat" else "text_completion"
    return {**_envelope(generation, name), "choices": choices, "usage": usage(generation, generation.tokens), **extra}


def chunks(generation: Generation) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events of a streamed answer, each with the number of tokens sent with it (0 or 1)."""
    name = "chat.completion.chunk" if generation.kind == "chat" else "text_completion"
    envelope = _envelope(generation, name)
    every = range(generation.choices)
    if generation.kind == "chat":
        yield 0, {**envelope, "choices": [_delta(index, {"role": "assistant", "content": ""}) for index in every]}
    elif generation.echo:
        yield 0, {**envelope, "choices": [_piece(index, generation.prompt) for index in every]}
    for number in range(generation.tokens):
        word = text.token(generation.prompt, number)
        reason = generation.finish_reason if number == generation.tokens - 1 else None
        if generation.kind == "chat":
            yield 1, {**envelope, "choices": [_delta(index, {"content": word}, reason) for index in every]}
        else:
            yield 1, {**envelope, "choices": [_piece(index, word, reason) for index in every]}
    if generation.include_usage:
        yield 0, {**envelope, "choices": [], "usage": usage(generation, generation.tokens)}


def usage(generation: Generation, tokens: int) -> dict[str, Any]:
    """OpenAI's token counts."""
    completion = tokens * generation.choices
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": generation.prompt_tokens + completion,
    }


def _envelope(generation: Generation, name: str) -> dict[str, Any]:
    prefix = "chatcmpl" if generation.kind == "chat" else "cmpl"
    return {
        "id": f"{prefix}-{generation.request_id}",
        "object": name,
        "created": generation.created,
        "model": generation.model,
    }


def _delta(index: int, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": dict(delta), "logprobs": None, "finish_reason": reason}


def _piece(index: int, word: str, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": word, "logprobs": None, "finish_reason": reason}

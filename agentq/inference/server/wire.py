"""The JSON that the front answers with, as the OpenAI API has it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a JSON body."""

    status: HTTPStatus
    body: Any


class BadRequest(Exception):  # noqa: N818 -- an HTTP status by its name
    """The request is answered with this error and nothing else."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        """Keep what to answer."""
        super().__init__(message)
        self.status = status

    def answer(self) -> Answer:
        """Return it in the API's form."""
        ours = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "server_error" if ours else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.status.phrase}
        return Answer(self.status, {"error": error})


def parse(body: bytes) -> dict[str, Any]:
    """Return the request's JSON object.

    Raises:
        BadRequest: it is none.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
    return parsed


def texts_of(request: dict[str, Any], *, limit: int) -> list[str]:
    """Return the texts to embed, from ``input``: a text or a list of at most *limit*.

    Raises:
        BadRequest: anything else.
    """
    found = request.get("input")
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "input must be a text or a list of texts")
    if not 1 <= len(texts) <= limit:
        raise BadRequest(
            HTTPStatus.BAD_REQUEST, f"input has {len(texts)} texts, from 1 to {limit} are taken"
        )
    if request.get("encoding_format", "float") != "float":
        raise BadRequest(HTTPStatus.BAD_REQUEST, "encoding_format must be 'float'")
    return texts


def no_model(missing: str) -> BadRequest:
    """Return the refusal for an endpoint whose packages are *missing*.

    It is a 404, not a 501: clients try a 5xx again, and that would not help.
    """
    return BadRequest(
        HTTPStatus.NOT_FOUND,
        f"this server has no model for that: {missing}. Or use another server: set model.base_url "
        "(AGENTQ_MODEL__BASE_URL)",
    )


def require_model(request: dict[str, Any], served: str) -> None:
    """Return when *request* names the model *served*, or names none.

    Raises:
        BadRequest: 404 otherwise.
    """
    wanted = request.get("model") or served
    if wanted != served:
        raise BadRequest(
            HTTPStatus.NOT_FOUND,
            f"model {wanted!r} is not served here; this endpoint has {served!r}",
        )


def embeddings(model: str, vectors: Sequence[Sequence[float]], tokens: int) -> Answer:
    """Return the answer of ``/v1/embeddings``."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Answer(HTTPStatus.OK, {"object": "list", "model": model, "data": data, "usage": usage})


def models(names: Sequence[str]) -> Answer:
    """Return the answer of ``/v1/models``."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "agentq"} for name in names]
    return Answer(HTTPStatus.OK, {"object": "list", "data": data})

"""Whether a model server is there at all, asked once and briefly before work is given to it."""

from __future__ import annotations

from datetime import timedelta

_LIMIT = timedelta(seconds=2)


def why_silent(base_url: str) -> str:
    """Return why nobody answers at *base_url*; empty where somebody does, whatever the answer.

    Takes at most some seconds; empty too where httpx2, an extra, is missing.
    """
    try:
        import httpx2  # noqa: PLC0415 -- an extra

        from agentq.inference.client import LOOPBACK  # noqa: PLC0415 -- likewise
    except ModuleNotFoundError:
        return ""
    url = httpx2.URL(base_url.rstrip("/") + "/models")
    try:
        httpx2.get(url, timeout=_LIMIT.total_seconds(), trust_env=url.host not in LOOPBACK)
    except httpx2.RequestError as error:
        return f"no connection ({error})" if isinstance(error, httpx2.ConnectError) else str(error)
    return ""

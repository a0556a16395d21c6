"""`redis://` with Celery's own transport: the same steps run, and these guarantees do not hold."""

from __future__ import annotations

from collections.abc import Iterator

from agentq.ops.doctor.finding import Finding, error, warning

SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")
"""Celery's own."""

NOT_HELD = {
    "nothing accepted is lost": "a message is popped in one command and noted as unacknowledged in "
    "another: a worker killed between them loses it, acks_late or not",
    "a step finishes once": "result, fan-in and ack are separate commands and no fence is checked: "
    "a worker that wakes up late, or a task longer than visibility_timeout, finishes a second time",
    "a dead worker costs one lease": "there are no leases: what it held comes back after "
    "visibility_timeout (an hour), or never with early acks",
    "no result after a deadline": "`expires` is looked at before the start, by the worker's own "
    "clock; nothing checks a result",
    "overload is an answer": "queues have no bound: producers are accepted until Redis is full, "
    "and workers end then",
    "bad input harms only itself": "a header that can not be parsed ends the worker, is put back, "
    "and ends the next one; a task that kills its process is handed out for ever",
    "upgrades roll": "a worker throws away tasks that it does not know",
    "a producer is never stuck": "with Redis down a call blocks for 19 s, with Redis stopped "
    "for as long as that lasts; a repeated publish is a second task",
}
"""Guarantee -> what Celery 5.7 on Redis does instead; the fault tests try each on ours."""

_FIX = (
    'url = "agentq://host:6379/0" under [broker]; what waits is taken over by '
    "`agentq migrate redis://host:6379/0 --from`"
)


def is_stock(url: str | None) -> bool:
    """Whether *url* is read by Celery's own transport."""
    return url is not None and url.partition("://")[0] in SCHEMES


def stock(url: str | None) -> Iterator[Finding]:
    """Name each guarantee that does not hold on *url*."""
    if not is_stock(url):
        return
    scheme = str(url).partition("://")[0]
    yield error(
        "broker.stock",
        f"broker.url is {scheme}://, which agentq's workers and commands refuse",
        why="the steps run there only under Celery's own transport, which does not hold the "
        "following",
        remedy=_FIX,
    )
    for guarantee, instead in NOT_HELD.items():
        yield warning(
            "broker.stock",
            f"broker.url is {scheme}://: does not hold: {guarantee}",
            why=instead,
            remedy=_FIX,
        )

"""`agentq migrate`: move what waits in a stock Celery's lists here, or back."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import App, Json


def migrate(
    url: Annotated[str, typer.Argument(metavar="redis://...", help="Broker of the stock Celery.")],
    from_: Annotated[bool, typer.Option("--from", help="Move from there into our queues.")] = False,
    to: Annotated[bool, typer.Option("--to", help="Move from our queues to there.")] = False,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="Its queue (repeatable). Default: celery."),
    ] = None,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Our pool.")] = "shared",
    unacked: Annotated[
        bool, typer.Option("--unacked", help="Also what its workers took; stop them first.")
    ] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Move waiting tasks from a stock Celery's Redis lists into our queues, or back.

    Interrupted, it is just given again within 7 days: a message is copied once. One move at a time,
    with the workers that it takes from stopped; going back, steps of flows and delayed tasks stay.

    Example: agentq migrate redis://localhost:6379/0 --from --queue celery --queue mail
    """
    from agentq.ops.application import any_app
    from agentq.ops.migrate import from_celery, to_celery

    if from_ == to:
        raise typer.BadParameter("say which way: --from or --to", param_hint="--from")
    queues = queue or ["celery"]
    aq = any_app(app)
    if from_:
        done = from_celery(aq, url, queues, pool=pool, unacked=unacked)
    else:
        if len(queues) > 1:
            raise typer.BadParameter("going back, name one queue", param_hint="--queue")
        done = to_celery(aq, url, [pool], queue=queues[0])
    if as_json:
        import orjson

        typer.echo(orjson.dumps(done).decode())
    else:
        left = f"; {done.left} left where they were" if done.left else ""
        typer.echo(f"{done.moved} messages moved{left}")

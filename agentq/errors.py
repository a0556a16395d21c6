"""Every exception that agentq raises, named by the situation, carrying what the caller needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class AgentQError(Exception):
    """The root of the tree: catch it to catch whatever agentq raises on purpose."""


# -- set-up ---------------------------------------------------------------------------------------


class SettingsError(AgentQError):
    """A setting is unknown, of the wrong type, or missing where it is required."""


class ServerNotFound(AgentQError):
    """No Valkey or Redis server program could be found to embed."""


class ServerFailed(AgentQError):
    """The embedded server ended or stayed silent instead of getting ready; has its last words."""


class PlatformUnsupported(AgentQError):
    """This operating system does not offer what was asked for; agentq's platform is Linux."""


class AddressInUse(AgentQError):
    """A port or socket that agentq was told to use belongs to another process."""


class LimitReached(AgentQError):
    """A limit of the kernel's leaves no room to begin; the text names it and what raises it."""


class DefinitionError(AgentQError):
    """A step, flow or app is declared in a way that cannot work."""


# -- handing work over ----------------------------------------------------------------------------


class BrokerUnavailable(AgentQError):
    """The broker did not answer within the time limit; the same call with the same id is safe."""


class FunctionsMissing(BrokerUnavailable):
    """The broker lacks agentq's functions and this user may not load them: `agentq broker init`."""


class BrokerNotConfigured(AgentQError):
    """No broker is set and no embedded one runs."""


_FULL = {
    "length": "pool {pool} holds {depth} of at most {limit} messages",
    "bytes": "pool {pool} holds about {depth} of at most {limit} bytes of messages",
    "delayed": "pool {pool} holds {depth} of at most {limit} delayed messages",
    "delayed bytes": "pool {pool} holds {depth} of at most {limit} bytes of delayed messages",
    "tenant": "the tenant has {depth} of at most {limit} unfinished runs",
    "left": "{depth} messages and fan-ins of this key's last run are still to be dropped",
    "memory": "the broker uses {depth} of the {limit} bytes (80 % of its maxmemory) up to which it "
    "accepts new work",
}
_RAISE = {
    "length": "broker.max_length",
    "bytes": "broker.max_bytes",
    "delayed": "broker.max_length",
    "delayed bytes": "broker.max_bytes",
    "tenant": "broker.max_per_tenant",
    "left": "runs.keep",
    "memory": "the server's maxmemory",
}


class QueueFull(AgentQError):
    """The queue is at its limit; nothing was accepted."""

    def __init__(
        self, pool: str, *, depth: int, limit: int, retry_after: timedelta, reason: str = "length"
    ) -> None:
        """Keep what a caller needs to come back: `retry_after` is measured, not guessed.

        *reason*: which limit, ``length``, ``bytes``, ``delayed``, ``delayed bytes``, ``tenant``,
        ``left`` or ``memory``; *depth* is how much there is of it.
        """
        holds = _FULL[reason].format(pool=repr(pool), depth=depth, limit=limit)
        setting = _RAISE[reason]
        seconds = retry_after.total_seconds()
        super().__init__(f"{holds}; try again in {seconds:.1f} s or raise {setting}")
        self.pool = pool
        self.reason = reason
        self.depth = depth
        self.limit = limit
        self.retry_after = retry_after
        self.accepted: list[object] = []
        """Handles of what was accepted before, when many were submitted."""


class NotReplicated(AgentQError):
    """The work is accepted and runs, but no replica has it yet: a failover may lose it.

    The same key or task id again is safe: a primary that has the work takes it once, one that lost
    it takes it anew. `accepted` is empty where no replica was attached and nothing was sent.
    """

    def __init__(self, message: str, *, accepted: Sequence[object] = ()) -> None:
        """Keep the handles (of tasks: the ids) of what stands in the primary."""
        super().__init__(message)
        self.accepted = list(accepted)


class PayloadTooLarge(AgentQError):
    """An argument or result is larger than `broker.max_payload`, and no blob storage takes it."""


class BlobsUnavailable(AgentQError):
    """Blob storage can not be written or read now, or did not in time; again is safe."""


class BlobMissing(AgentQError):
    """A payload is not where its reference says: its blob was deleted, or is elsewhere."""


class BlobAltered(BlobMissing):
    """A payload's blob is there, and its bytes are not those that were stored."""


class UnknownFlow(AgentQError):
    """The app declares no flow of that name."""


class UnknownStep(AgentQError):
    """The app declares no step of that name."""


class InvalidArgument(AgentQError):
    """A step was given an argument that its annotation forbids."""


class InvalidOption(InvalidArgument, ValueError):
    """An option of a call, such as ``deadline=``, is nothing that it may be."""


# -- what a run may end as ------------------------------------------------------------------------


class RunError(AgentQError):
    """A run ended without a result."""


class RunNotFound(RunError):
    """No run of that id is known; it never was, or it was kept for `runs.keep` and is gone."""


class RunFailed(RunError):
    """A step failed for good; `kind` is the exception's name there, `step` where it happened."""

    def __init__(self, run_id: str, *, step: str, kind: str, message: str) -> None:
        """Name the run, the step and what the step raised."""
        super().__init__(f"run {run_id} failed in step {step!r}: {kind}: {message}")
        self.run_id = run_id
        self.step = step
        self.kind = kind
        self.message = message


class RunCancelled(RunError):
    """The run was cancelled."""


class DeadlineExceeded(RunError):
    """The deadline passed before the work was done; nothing more of it is started or accepted."""


class WaitTimeout(AgentQError):
    """The caller stopped waiting; the run goes on."""


class InvalidResult(AgentQError):
    """A step returned what its annotation forbids."""


class RunTooLarge(RunError):
    """A run's fan-outs are wider than `runs.max_members`, or it has more than `runs.max_bytes`."""


class StepTimeout(AgentQError):
    """One attempt of a step did not end within its `timeout`."""


class StepAborted(AgentQError):
    """A step tried to end its process, or awaited something of its own that was cancelled."""


class StaleAttempt(AgentQError):
    """This attempt is no longer the owner of its step; what it writes is refused."""


class WorkerLost(AgentQError):
    """The process that ran the step died."""


# -- models ---------------------------------------------------------------------------------------


class ModelError(AgentQError):
    """A call to a model server failed; `call` says which, `retryable` whether again may help."""

    retryable = False
    attempts = 1  # how many calls were made before this error was given to the caller

    def __init__(self, message: str, *, call: str = "") -> None:
        """Keep which call it was, e.g. ``POST http://127.0.0.1:8080/v1/chat/completions``."""
        super().__init__(message)
        self.call = call


class ModelUnavailable(ModelError):
    """The server could not be reached, broke off, or answered 5xx."""

    retryable = True


class ModelTimeout(ModelError):
    """The server did not answer, or stopped answering, within the time limit."""

    retryable = True


class ModelRateLimited(ModelError):
    """The server asked to come back later."""

    retryable = True

    def __init__(
        self, message: str, *, call: str = "", retry_after: timedelta | None = None
    ) -> None:
        """Keep the server's own `retry_after` where it gave one."""
        super().__init__(message, call=call)
        self.retry_after = retry_after


class ModelRefused(ModelError):
    """The server refused the request (4xx): the same request will be refused again."""


class ModelAnswerInvalid(ModelError):
    """The server answered with something that is not what its API promises."""


# -- operations -----------------------------------------------------------------------------------


class LetterNotFound(AgentQError):
    """There is no dead letter of that id."""


class DeadLettersFull(AgentQError):
    """The dead letters are at their limit: one more would push out the oldest."""

    def __init__(self, moved: int) -> None:
        """Keep how many messages were moved before."""
        super().__init__(
            f"the dead letters are full (dead.max_number, dead.max_bytes): {moved} were moved, the "
            "rest still waits; replay or drop some (agentq dead drop --all), then purge again"
        )
        self.moved = moved


class BenchFailed(AgentQError):
    """A benchmark could not be run or did not end within its time; the text has the log's end."""


class ModelPackageMissing(ModelError):
    """The local model server lacks a package; the text says what to install."""


class BatchQueueFull(AgentQError):
    """Too many items wait for a batch; nothing was accepted."""

    def __init__(self, batcher: str, *, waiting: int, limit: int, retry_after: timedelta) -> None:
        """Keep what a caller needs to come back: `retry_after` is measured, not guessed."""
        super().__init__(
            f"batcher {batcher!r} holds {waiting} of at most {limit} items; try again in "
            f"{retry_after.total_seconds():.1f} s or give it fewer at once"
        )
        self.batcher = batcher
        self.waiting = waiting
        self.limit = limit
        self.retry_after = retry_after


class BatcherStopped(AgentQError):
    """The batcher was stopped before this item was answered, or was never started."""


class ProcessFailed(AgentQError):
    """A process that agentq started and watches ended again and again, or never got ready."""


class DeployError(AgentQError):
    """Units can not be rendered, installed or run as asked; the text has what is in the way."""

"""Every key of a cell, made here and nowhere else.

All keys of a cell share the hash tag ``{aq:<cell>}``, so that they live in one slot and one
function may touch any of them; functions get the prefix as KEYS[1] and add the rest by the same
rules (`functions/_prelude.lua`).

Key, type, what it holds, how long it lives::

    s:<pool>:<lane>           stream  work never handed over (group `w`); permanent
    r:<pool>:<lane>           stream  returned work, read first (group `w`); permanent
    lanes                     set     every `<pool>:<lane>` seen; permanent
    open:<pool>:<lane>        list    opened groups whose members are not in `s:` yet
                                      until spilled
    stage:<group>             list    members staged for a group, packed; `STAGE_TTL`
    group:<group>             list    members of an opened group, packed; until spilled
    idle:<pool>               zset    workers with room, score = slots in use
                                      permanent, bounded
    wake:<worker>             list    tokens that wake a worker or cancel a run; a few leases
    workers                   zset    worker -> lease end, ms of Redis' clock
                                      permanent, bounded
    worker:<worker>           hash    pool, host, pid, lease, what it reports and has; a day
    reap:last                 string  when `reap` last ran, ms; permanent
    reap:server               string  run id of the server that judged leases last; permanent
    delayed                   zset    delivery -> due ms; permanent, bounded
    delayed:m                 hash    delivery -> packed message; permanent, bounded
    delayed:r:<run>           set     deliveries of a run that are delayed; until they are due
    ended                     set     runs that ended and left delayed work or fan-ins
                                      permanent, until that is dropped
    parked                    hash    what no worker has the code of -> how many are delayed for it
                                      permanent, bounded
    parked:t                  hash    the same -> since when, ms; permanent, bounded
    paused                    hash    pause -> since when, ms, "-" before it while it is lifted
                                      permanent, bounded
    aside:<pause>             list    messages that a pause stopped, packed; until it is lifted
    blobs:begun               string  that one was written: its place is there now; permanent
    blobs:id                  string  tells this cell's blobs from all others'; permanent
    blobs:kept:<run>          string  when a letter of the run that refers to a blob died, ms
                                      until it is swept, ten years at most
    blobs:swept:<place>       string  who swept a blob storage last; an hour
    retries                   string  the settings of the retry budget; permanent
    retries:<pool>            zset    delayed retries that wait for the budget -> due ms
                                      permanent, bounded
    tokens                    zset    pools that have such -> when to look for tokens, ms
                                      permanent, bounded
    load:<pool>               hash    completions, retries, samples of each lane; permanent
    counts                    hash    runs ended by flow and state, steps by name and outcome
                                      permanent, bounded
    tenants                   hash    tenant -> its unfinished runs; permanent, bounded
    id:<id>                   string  this id was enqueued; broker.dedupe_ttl
    run:<run>                 hash    state, flow, deadline, result; runs.keep
    run:<run>:ev              stream  the run's events; runs.keep
    run:<run>:joins           set     its fan-ins; until they are forgotten, runs.join_ttl
    runs                      zset    run -> when submitted; permanent, trimmed
    due                       zset    unfinished run -> deadline ms; permanent, bounded
    join:<join>               hash    members left, width, body to enqueue; runs.join_ttl
    join:<join>:res           hash    index -> outcome; runs.join_ttl
    join:<join>:wait          list    members beyond `at_once`, packed; runs.join_ttl
    dead                      stream  dead letters; permanent, trimmed
    dead:n                    hash    their bytes, their limits, how many were trimmed; permanent
    reply:<queue>             list    replies to remote control; a minute
    celery-task-meta-<task>   string  Celery's result document; broker.result_ttl

What is queued of a run that ended is known to be so by the run's record: still queued when that is
gone (runs.keep) and its key taken again, it runs as a step of the new run, which has the same id.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "w"
"""The one consumer group of every queue."""

RESULT_PREFIX = "celery-task-meta-"
"""Celery's own, so that stock `AsyncResult` code finds results."""

REPLICATED = "replicated"
"""A channel that nobody listens to: see `replication`."""

PERMANENT = (
    "s:", "r:", "lanes", "workers", "reap:", "delayed", "runs", "due", "dead", "idle:",
    "parked", "paused", "aside:", "blobs:id", "blobs:begun", "retries", "load:", "tenants", "ended",
    "tokens", "counts",
)  # fmt: skip
"""What may stand without a time to live; a test walks all keys against this list."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cell."""

    cell: str

    @property
    def prefix(self) -> str:
        """Return what every key of the cell begins with."""
        return f"{{aq:{self.cell}}}:"

    def stream(self, pool: str, lane: str) -> str:
        """Return the queue of new work."""
        return f"{self.prefix}s:{pool}:{lane}"

    def returned(self, pool: str, lane: str) -> str:
        """Return the queue of returned work."""
        return f"{self.prefix}r:{pool}:{lane}"

    def wake(self, worker: str) -> str:
        """Return the list on which a worker waits."""
        return f"{self.prefix}wake:{worker}"

    def counts(self) -> str:
        """Return what has ended so far, by name and outcome."""
        return f"{self.prefix}counts"

    def workers(self) -> str:
        """Return the lease table."""
        return f"{self.prefix}workers"

    def worker(self, worker: str) -> str:
        """Return what a worker says of itself."""
        return f"{self.prefix}worker:{worker}"

    def idle(self, pool: str) -> str:
        """Return the table of a pool's workers that have room."""
        return f"{self.prefix}idle:{pool}"

    def load(self, pool: str) -> str:
        """Return what is measured of a pool."""
        return f"{self.prefix}load:{pool}"

    def lanes(self) -> str:
        """Return the set of queues seen."""
        return f"{self.prefix}lanes"

    def delayed(self) -> str:
        """Return the table of delayed deliveries' due times."""
        return f"{self.prefix}delayed"

    def delayed_messages(self) -> str:
        """Return the table of what is delayed, retries that wait for the budget included."""
        return f"{self.prefix}delayed:m"

    def retries(self, pool: str) -> str:
        """Return the table of a pool's retries that wait for the budget."""
        return f"{self.prefix}retries:{pool}"

    def retrying(self) -> str:
        """Return the table of pools whose retries wait for the budget."""
        return f"{self.prefix}tokens"

    def accepted(self, dedupe_id: str) -> str:
        """Return the mark of what was enqueued under an id."""
        return f"{self.prefix}id:{dedupe_id}"

    def run(self, run_id: str) -> str:
        """Return the record of a run."""
        return f"{self.prefix}run:{run_id}"

    def events(self, run_id: str) -> str:
        """Return the event stream of a run."""
        return f"{self.prefix}run:{run_id}:ev"

    def runs(self) -> str:
        """Return the index of runs by time."""
        return f"{self.prefix}runs"

    def join(self, join_id: str) -> str:
        """Return the record of a fan-in."""
        return f"{self.prefix}join:{join_id}"

    def outcomes(self, join_id: str) -> str:
        """Return the outcomes of a fan-in, by index."""
        return f"{self.prefix}join:{join_id}:res"

    def dead(self) -> str:
        """Return the dead letters."""
        return f"{self.prefix}dead"

    def dead_numbers(self) -> str:
        """Return what is counted of the dead letters."""
        return f"{self.prefix}dead:n"

    def staged(self, group: str) -> str:
        """Return the members of a group that is not open yet."""
        return f"{self.prefix}stage:{group}"

    def parked(self) -> str:
        """Return how many messages wait for code that no worker has, by its name."""
        return f"{self.prefix}parked"

    def parked_since(self) -> str:
        """Return since when, by the same name."""
        return f"{self.prefix}parked:t"

    def paused(self) -> str:
        """Return the pauses."""
        return f"{self.prefix}paused"

    def aside(self, pause: str) -> str:
        """Return what a pause stopped."""
        return f"{self.prefix}aside:{pause}"

    def join_waiting(self, join_id: str) -> str:
        """Return the members of a fan-in beyond `at_once`."""
        return f"{self.prefix}join:{join_id}:wait"

    def blobs_id(self) -> str:
        """Return what tells this cell's blobs from all others'."""
        return f"{self.prefix}blobs:id"

    def blobs_begun(self) -> str:
        """Return what tells that the cell has had a blob."""
        return f"{self.prefix}blobs:begun"

    def blobs_kept(self, run_id: str) -> str:
        """Return when the last dead letter of a run that refers to a blob died."""
        return f"{self.prefix}blobs:kept:{run_id}"

    def blobs_swept(self, place: str) -> str:
        """Return who swept the blob storage at *place* last."""
        return f"{self.prefix}blobs:swept:{place}"

    def reply(self, queue: str) -> str:
        """Return the list of replies to one caller of remote control."""
        return f"{self.prefix}reply:{queue}"

    def result(self, task_id: str) -> str:
        """Return the result document of a task."""
        return f"{self.prefix}{RESULT_PREFIX}{task_id}"

"""Payloads beyond `broker.max_payload`: kept outside of Redis, referred to from messages.

A blob is written before anything refers to it and never changed. Its reference,
``<day>/<run>/<sha256>-<size>``, stands where users can not write: in header `aq` of a message, in
place of `value` in a member's outcome, behind a byte that no JSON begins with in a run's result.

day     of its writing: what is older than `blobs.orphan_age` is never referred to anew, so that a
        sweep that finds no run for it takes nothing from a submit that comes at the same moment
run     whose it is: it lives as long as the run's record, or a dead letter of the run
sha256  names the content (the same bytes written again, by a retry, are the same blob) and is
        compared when it is read
"""

from agentq.blobs.endings import Endings
from agentq.blobs.payloads import Blobs
from agentq.blobs.store import BlobStore, chosen

__all__ = ["BlobStore", "Blobs", "Endings", "chosen"]

"""Whether a process of a stock pool still has what waited in its pipe for longer than a lease."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace

from agentq.store.keys import GROUP
from tests.support.ledger import Ledger
from tests.support.running import running


def test_what_waited_for_longer_than_a_lease_is_lost_once_another_has_it(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.both", url, ledger) as here:
        store, backend = here.app.aq.store, here.app.aq.celery.backend
        stream = f"{store.keys.prefix}s:shared:normal"
        store.client.xgroup_create(stream, GROUP, mkstream=True)
        entry = store.client.xadd(stream, {"i": "x"}).decode()
        request = SimpleNamespace(
            task=here.app.add.name,
            properties={
                "delivery_tag": f"{stream}|{entry}",
                "delivery_info": {"taken": monotonic() - 1000},
            },
        )
        assert backend.is_lost(request)
        store.client.xreadgroup(GROUP, "w", {stream: ">"})
        assert not backend.is_lost(request)
        store.client.delete(stream)
        store.close()

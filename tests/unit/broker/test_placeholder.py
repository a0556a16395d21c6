"""What Celery shows of a configuration whose broker URL only says: where the cell is."""

from __future__ import annotations

from agentq.broker.app import App


def test_the_configuration_is_shown_with_the_real_address_and_no_password() -> None:
    app = App("shown", overrides={"broker.url": "agentq://user:secret@cell.example:7000/2"})
    shown = app.celery.conf.humanize()
    assert "broker_url: 'agentq://cell.example:7000/2'" in shown
    assert "secret" not in shown

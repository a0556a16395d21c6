"""An app whose beat submits one entry every second."""

from __future__ import annotations

from tests.support.apps.canvas import app, noted

app.conf.beat_schedule = {
    "tick": {"task": noted.name, "schedule": 1.0, "args": ("tick",)},
}

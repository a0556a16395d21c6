from __future__ import annotations

import subprocess
import sys


def said(code: str) -> str:
    """Run *code* in an interpreter that has imported nothing of ours."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    ).stdout.strip()


def test_importing_agentq_imports_neither_kombu_nor_celery() -> None:
    code = "import agentq, sys; print({'kombu', 'celery', 'redis'} & sys.modules.keys())"
    assert said(code) == "set()"


def test_url_is_known_to_kombu_and_celery_imported_later() -> None:
    code = """
import agentq
from celery import Celery
app = Celery(broker="agentq://h:1/2?cell=c", backend="agentq+unix:///tmp/x.sock", set_as_current=False)
print(app.connection().as_uri(), app.backend.as_uri())
"""
    assert said(code) == "agentq://h:1/2 agentq+unix:///tmp/x.sock"


def test_url_is_known_to_kombu_and_celery_imported_before() -> None:
    code = """
from celery import Celery
import celery.app.backends, kombu.transport
import agentq
app = Celery(broker="agentq+unix:///tmp/x.sock", backend="agentq://h:1/2", set_as_current=False)
print(app.connection().as_uri(), app.backend.as_uri())
"""
    assert said(code) == "agentq+unix:///tmp/x.sock agentq://h:1/2"


def test_modules_that_are_watched_load_as_ever() -> None:
    code = """
import agentq
import celery.app.backends as backends, kombu.transport as transport
print(transport.resolve_transport("memory").__name__, backends.by_name("redis").__name__)
"""
    assert said(code) == "Transport RedisBackend"

"""Celery made ours: app, transport, backend, messages, steps."""

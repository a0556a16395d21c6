"""Runs the command line: `agentq`, or ``python -m agentq``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name; say what to install where an extra is missing."""
    try:
        from agentq.cli.main import main as run  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        from agentq.extras import pip_install  # noqa: PLC0415 -- only then

        sys.exit(f"agentq: no {error.name}: {pip_install('cli')}")
    run()


if __name__ == "__main__":
    main()

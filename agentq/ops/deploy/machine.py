"""This machine's agentq as a whole: installed, changed, taken away, read back with its settings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from agentq.clock import format_duration
from agentq.errors import DeployError, SettingsError
from agentq.host.plan import Plan, read_plan
from agentq.ops.deploy import deployment, systemd
from agentq.ops.deploy.deployment import Given, Site
from agentq.ops.deploy.install import (
    Changes,
    Record,
    install,
    is_ours,
    read_record,
    remove,
    uninstall,
)
from agentq.ops.deploy.render import (
    CODE,
    CREDENTIALS,
    ENVIRONMENT,
    OPTIONAL,
    PLAN,
    STOP_SLACK,
    SYSCTL,
    File,
    embedded_variables,
    render,
    unit_path,
    worker_files,
)
from agentq.ops.worker_process import launch_variables
from agentq.settings import Settings
from agentq.settings.sources import CONFIG_VARIABLE, CREDENTIAL_PREFIX, has_settings
from agentq.store.address import parse
from agentq.store.client import Store

ROOT = Path("/")
_APPLY = "/usr/lib/systemd/systemd-sysctl"
_RUNTIME = Path("/run/agentq")
_LONGEST_STOP = timedelta(hours=1)
_ASSIGNMENT = re.compile(r'^(\w+)="((?:[^"\\]|\\.)*)"$', re.MULTILINE)


def render_all(site: Site, settings: Settings, plan: Plan, given: Given) -> dict[str, File]:
    """Return every file for this machine; errors as `render`."""
    allocators = {
        name: launch_variables(pool, settings, environ={}) for name, pool in settings.pools.items()
    }
    return render(site, settings, plan, given, allocators)


class Machine:
    """What is installed below *root*; a root that is not / is written to, and nothing is run."""

    def __init__(self, *, root: Path = ROOT) -> None:
        """Read what is there."""
        self.root = root
        self.record = read_record(root)

    def require(self) -> Record:
        """Return what is installed.

        Raises:
            DeployError: nothing is.
        """
        if self.record is None:
            raise DeployError("no units are installed here: agentq deploy install -A MODULE:NAME")
        return self.record

    def given(self) -> Given:
        """Return the settings that were given when it was installed."""
        secrets = sorted((self.root / CREDENTIALS).glob(f"{CREDENTIAL_PREFIX}*"))
        secret = {
            path.name.removeprefix(CREDENTIAL_PREFIX): path.read_text(encoding="utf-8")
            for path in secrets
        }
        return Given(
            plain=_assigned(self.root / ENVIRONMENT),
            secret=secret,
            code=_assigned(self.root / CODE),
        )

    def settings(self, processes: Mapping[str, int] | None = None) -> Settings:
        """Return the settings as the units have them, with other numbers of *processes*."""
        record = self.require()
        return deployment.load(record.site, self.given(), {**record.processes, **(processes or {})})

    def variables(self) -> dict[str, str]:
        """Return the variables by which another process has the units' settings."""
        own = self.require().site.folder / "config"
        config = {CONFIG_VARIABLE: str(own)} if has_settings(own) else {}
        broker = {} if self.settings().broker.url else embedded_variables()
        return {**config, **broker, **self.given().environ}

    def store(self) -> Store:
        """Return the cell that the units work for."""
        settings = self.settings()
        url = settings.require_broker() or embedded_variables()["AGENTQ_BROKER__URL"]
        address = parse(url, cell=settings.broker.cell)
        return Store(address=address, timeout=settings.broker.timeout)

    def plan(self) -> Plan:
        """Return the plan that the units were rendered from.

        Raises:
            DeployError: nothing is installed.
            SettingsError: it can not be read.
        """
        self.require()
        return read_plan(self.root / PLAN)

    def install(self, site: Site, settings: Settings, plan: Plan, given: Given) -> Changes:
        """Write the units and all they need, and have systemd read them; nothing is started.

        Raises:
            DeployError: something is in the way.
        """
        files = render_all(site, settings, plan, given)
        processes = {name: pool.processes for name, pool in settings.pools.items()}
        optional = self._optional(files) if self.root == ROOT else []
        leaving = self._leaving(files) if self.root == ROOT else {}
        changes = install(self.root, {**leaving, **files}, site=site, processes=processes)
        if self.root == ROOT:
            try:
                systemd.run(_APPLY, f"/{SYSCTL}")
            except DeployError as error:  # a container may not, and its units run all the same
                changes.refused.extend(str(error).splitlines())
            systemd.run("systemd-sysusers", "/etc/sysusers.d/agentq.conf")
            systemd.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/agentq.conf")
            systemd.systemctl("daemon-reload")
            systemd.systemctl("enable", "--quiet", systemd.TARGET, *optional)
        self.record = read_record(self.root)
        return changes

    def drain(self, instances: Sequence[str], *, say: Callable[[str], None]) -> None:
        """Have worker processes that the plan has no seat for end, and take away their files.

        Raises:
            DeployError: one does not end.
        """
        if not instances:
            return
        units = [systemd.worker_unit(name) for name in instances]
        limit = self.settings().worker.drain_timeout
        say(f"{', '.join(instances)}: draining, for at most {format_duration(limit)}")
        systemd.systemctl("stop", *units, within=limit + 2 * STOP_SLACK)
        failed = []
        for unit in systemd.show(units):
            how = "drained and stopped" if unit.result == "success" else f"ended by {unit.result}"
            say(f"{unit.instance}: {how}")
            if unit.active not in {"inactive", "failed"}:
                failed.append(unit.instance)
        if failed:
            raise DeployError(f"still there: {', '.join(failed)}: systemctl status agentq-worker@*")
        seated = {file for one in self.plan().processes for file in worker_files(one.name)}
        remove(self.root, {file for one in instances for file in worker_files(one)} - seated)
        systemd.systemctl("daemon-reload")

    def uninstall(self) -> Changes:
        """Stop everything in order and remove what was installed; data and user stay.

        Raises:
            DeployError: nothing is installed, or something does not end.
        """
        self.require()
        if self.root == ROOT:
            # The target tells its services to stop and is gone; the slice is when they have.
            systemd.systemctl("stop", systemd.TARGET, systemd.SLICE, within=self.stop_limit())
            ours = [unit for unit in OPTIONAL if systemd.enablement(unit)]
            systemd.systemctl("disable", "--quiet", systemd.TARGET, *ours)
        changes = uninstall(self.root)
        self.record = None
        if self.root == ROOT:
            systemd.systemctl("daemon-reload")
            systemd.systemctl("reset-failed", "agentq*")
            with contextlib.suppress(OSError):  # the units' own folders in it are gone
                _RUNTIME.rmdir()
        return changes

    def _optional(self, files: Mapping[str, File]) -> list[str]:
        """Return which optional units to enable, and do away with those that are not rendered."""
        found = {unit: systemd.enablement(unit) for unit in OPTIONAL}
        gone = [unit for unit in found if found[unit] and unit_path(unit) not in files]
        if gone:
            systemd.systemctl("disable", "--quiet", "--now", *gone)
        wanted = [unit for unit in OPTIONAL if unit_path(unit) in files]
        if systemd.enablement(systemd.TARGET) != "enabled":  # the first time, or it was cut off
            return wanted
        return [unit for unit in wanted if found[unit] not in {"disabled", "masked"}]

    def _leaving(self, files: Mapping[str, File]) -> dict[str, File]:
        """Return what is not among *files* and holds for processes that run: until they end."""
        ours = self.record.hashes if self.record else {}
        own = {file for one in systemd.running_workers() for file in worker_files(one)}
        there = {name: self.root / name for name in own & ours.keys() - files.keys()}
        return {
            name: File(text=path.read_text(encoding="utf-8"))
            for name, path in there.items()
            if is_ours(path, ours[name])
        }

    def stop_limit(self) -> timedelta:
        """Return what stopping all may take before systemd itself ends what is left."""
        try:
            return 2 * (self.settings().worker.drain_timeout + STOP_SLACK)
        except SettingsError:  # broken by now, which is no reason to stay
            return _LONGEST_STOP


def next_steps(machine: Machine) -> list[str]:
    """Return what has to be done for an installation to be what runs."""
    if machine.root != ROOT:
        return []
    if not (running := systemd.running_workers()):
        return ["nothing runs yet: systemctl start agentq.target"]
    leaving = sorted(running - {one.name for one in machine.plan().processes})
    ends = f", and ends {', '.join(leaving)}: not in the plan any more" if leaving else ""
    return [f"what runs is as it was until agentq rollout: that starts each of it again{ends}"]


def _assigned(path: Path) -> dict[str, str]:
    """Return the variables that a rendered file gives the units; none: there is no such file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _ASSIGNMENT.findall(text)}

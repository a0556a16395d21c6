"""Moving settings, on trials whose outcome the test decides."""

from __future__ import annotations

import resource
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import BenchFailed, ProcessFailed
from agentq.ops.tune import as_json, render
from agentq.ops.tune.climb import Tuning, tune
from agentq.ops.tune.machine import made_with
from agentq.ops.tune.parameters import Parameter, kernel_parameters, parameters
from agentq.ops.tune.record import Record
from agentq.ops.tune.verdict import Sample
from agentq.settings import load_settings

SLOTS = "pools.shared.slots"
SETTINGS = load_settings(environ={})
FOUND = parameters(SETTINGS, cores=2, slots=1000, allocators=["glibc"])
ROUNDS = 3
LONG = timedelta(hours=1)
PARAMETERS = [one for one in FOUND if "slots" in one.key or "window" in one.key]


class Machine:
    """Says what a trial measures, and notes which were run."""

    def __init__(self, throughput: Callable[[Mapping[str, str]], float]) -> None:
        self._throughput = throughput
        self.ran: list[dict[str, str]] = []

    def __call__(self, parameter: Parameter, value: str) -> Sample:
        self.ran.append({parameter.key: value})
        noise = len(self.ran) % 3
        return Sample(
            throughput=self._throughput(self.ran[-1]) + noise, p50_ms=10 + noise, p99_ms=20,
            switches=5,
        )  # fmt: skip


def slots_matter(best: int) -> Callable[[Mapping[str, str]], float]:
    """Return a machine on which so many slots are best; the further from that the worse."""

    def throughput(variables: Mapping[str, str]) -> float:
        slots = int(variables.get(SLOTS, 1000))
        return 1000 * min(slots, best) / max(slots, best)

    return throughput


def tuned(
    machine: Machine,
    path: Path,
    *,
    limit: timedelta = LONG,
    moved: Sequence[Parameter] = PARAMETERS,
) -> Tuning:
    record = Record(path=path, made_with="this")
    return tune(
        parameters=moved, settings=SETTINGS, run=machine, record=record, rounds=ROUNDS,
        limit=limit,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("best", "changes"),
    [
        (15, {"pools.shared.slots": "15"}),
        (8000, {"pools.shared.slots": "8000"}),
        (1000, {}),
    ],
)
def test_it_goes_down_as_well_as_up_and_stops_where_it_is_best(
    tmp_path: Path, best: int, changes: dict[str, str]
) -> None:
    assert tuned(Machine(slots_matter(best)), tmp_path / "file").changes == changes


def test_where_nothing_matters_it_says_so(tmp_path: Path) -> None:
    found = tuned(Machine(lambda _: 100), tmp_path / "file")
    assert {one.verdict for one in found.comparisons} == {"no difference"}
    assert "no setting would be changed" in render(found)


def test_what_is_better_once_and_not_again_is_not_adopted(tmp_path: Path) -> None:
    machine = Machine(
        lambda value: 200 if value == {SLOTS: "125"} and len(machine.ran) < 7 else 100
    )
    found = tuned(machine, tmp_path / "file")
    tried = [(one.candidate, one.reference, str(one.verdict)) for one in found.comparisons[:3]]
    assert tried == [
        ("125", "1000", "better"), ("15", "125", "no difference"), ("125", "1000", "no difference"),
    ]  # fmt: skip
    assert found.changes == {}
    assert "pools.shared.slots: 125 beside 1000, again: no difference" in render(found)


def test_the_two_values_take_turns(tmp_path: Path) -> None:
    machine = Machine(lambda _: 100)
    tuned(machine, tmp_path / "file")
    assert [variables[SLOTS] for variables in machine.ran[: 2 * ROUNDS]] == [
        "1000", "125", "125", "1000", "1000", "125",
    ]  # fmt: skip


def test_what_would_be_changed_is_printed_as_settings(tmp_path: Path) -> None:
    shown = render(tuned(Machine(slots_matter(15)), tmp_path / "file"))
    assert "nothing was changed" in shown
    assert shown.endswith("in config/<env>.toml:\n[pools.shared]\nslots = 15")
    assert max(map(len, shown.splitlines())) <= 80
    assert '"changes": {' in as_json(tuned(Machine(slots_matter(15)), tmp_path / "file"))


def test_two_changes_of_one_section_stand_under_one_head(tmp_path: Path) -> None:
    more = Machine(lambda value: 10 * sum(map(int, value.values())))
    shown = render(tuned(more, tmp_path / "file", moved=FOUND[:2]))
    assert tomllib.loads(shown.partition(".toml:\n")[2]) == {
        "pools": {"shared": {"slots": 16384, "processes": 4}}
    }


def test_a_kernel_setting_is_printed_for_the_kernel(tmp_path: Path) -> None:
    moved = kernel_parameters({"net.core.somaxconn": "128"}, lambda *_: nullcontext())
    more = Machine(lambda value: 10 * sum(map(int, value.values())))
    found = tuned(more, tmp_path / "file", moved=moved)
    assert (found.changes, found.sysctls) == ({}, {"net.core.somaxconn": "65535"})
    assert render(found).endswith("in /etc/sysctl.d/:\nnet.core.somaxconn = 65535")


def test_an_error_ends_it_and_the_next_call_goes_on_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "file"

    class Failing(Machine):
        def __call__(self, parameter: Parameter, value: str) -> Sample:
            if len(self.ran) == 4:
                raise ProcessFailed("the worker ended")
            return super().__call__(parameter, value)

    with pytest.raises(BenchFailed, match=r"^pools\.shared\.slots = 1000: the worker ended"):
        tuned(Failing(slots_matter(15)), path)
    path.write_bytes(path.read_bytes() + b'{"trial": "cut by a ki')
    whole = Machine(slots_matter(15))
    tuned(whole, tmp_path / "other")
    rest = Machine(slots_matter(15))
    assert tuned(rest, path).changes == {"pools.shared.slots": "15"}
    assert len(rest.ran) == len(whole.ran) - 4
    again = Machine(slots_matter(15))
    tuned(again, path)
    assert again.ran == []


def test_samples_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Record(path=path, made_with="this")
    with pytest.raises(BenchFailed, match="was made with other settings"):
        Record(path=path, made_with="that")
    for text in ("no record", "no record\nof ours", '{"made_with": "this"}\n{}\n'):
        path.write_text(text)
        with pytest.raises(BenchFailed, match="is no record of agentq tune"):
            Record(path=path, made_with="this")
        assert path.read_text() == text
    path.write_bytes(b'{"made_wi')  # killed in its first line
    Record(path=path, made_with="this")
    Record(path=path, made_with="this")
    told = {made_with(SETTINGS, rounds=rounds, chains=20) for rounds in (3, 5)}
    told.add(made_with(load_settings(overrides={"worker.threads": 3}), rounds=3, chains=20))
    assert len(told) == 3


def test_a_file_that_can_not_be_written_ends_it_and_what_was_whole_stays(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"/none/file can not be written \(No such file"):
        Record(path=tmp_path / "none" / "file", made_with="this")
    record = Record(path=tmp_path / "file", made_with="this")
    sample = Machine(lambda _: 1)(PARAMETERS[0], "1")
    record.keep("first", sample)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "file").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9, limits[1]))  # as where a disk is full
    try:
        with pytest.raises(BenchFailed, match=r"/file can not be written \(File too large\)"):
            record.keep("second", sample)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "file").stat().st_size == size + 9
    again = Record(path=tmp_path / "file", made_with="this")
    assert (again.find("first"), again.find("second")) == (sample, None)


def test_what_there_was_no_time_for_is_named(tmp_path: Path) -> None:
    found = tuned(Machine(lambda _: 100), tmp_path / "file", limit=timedelta(seconds=-1))
    assert found.untried == ("pools.shared.slots", "batch.window")
    assert "no time was left for pools.shared.slots, batch.window" in render(found)

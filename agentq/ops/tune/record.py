"""The file of a tuning: one line for each trial that has ended, so that it can go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

from agentq.errors import BenchFailed
from agentq.ops.tune.verdict import Sample

_BEGIN = b'{"made_with":'


class Record:
    """Trials by name; a trial that is there is not run again."""

    def __init__(self, *, path: Path, made_with: str) -> None:
        """Read what is there.

        *made_with* tells settings, machine and build from all others: samples of different ones
        are not to be compared.

        Raises:
            BenchFailed: it was made with others, or is no such file.
        """
        self._path = path
        self._samples: dict[str, Sample] = {}
        head = {"made_with": made_with}
        try:
            found = [orjson.loads(line) for line in _whole_lines(path)] if path.exists() else []
            if not found:  # new, or ended before its first line was whole
                self._append(head)
                return
            first, *lines = found
            told = first["made_with"]
            self._samples = {line["trial"]: Sample(**line["sample"]) for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise BenchFailed(
                f"{path} is no record of agentq tune ({error}): name another with --file"
            ) from error
        except OSError as error:
            raise _unusable(path, error) from error
        if first != head:
            raise BenchFailed(
                f"{path} was made with other settings, on another machine or by another build "
                f"({told}): remove it, or name another with --file"
            )

    def find(self, trial: str) -> Sample | None:
        """Return what a trial measured, None where it has not ended yet."""
        return self._samples.get(trial)

    def keep(self, trial: str, sample: Sample) -> None:
        """Note what it measured.

        Raises:
            BenchFailed: it can not be written; what has been stays.
        """
        self._samples[trial] = sample
        try:
            self._append({"trial": trial, "sample": sample.as_dict()})
        except OSError as error:
            raise _unusable(self._path, error) from error

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")


def _unusable(path: Path, error: OSError) -> BenchFailed:
    return BenchFailed(f"{path} can not be written ({error.strerror}): name another with --file")


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines; one that was cut by a kill is taken off, so that the next is whole."""
    data = path.read_bytes()
    if not data.startswith(_BEGIN[: len(data)]):
        raise ValueError("it begins otherwise")  # somebody's file: nothing is taken off it
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return whole.splitlines()

"""A scrape as a test reads it."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape, and the names of all metrics, those without a sample too."""

    names: frozenset[str]
    samples: dict[str, list[tuple[dict[str, str], float]]]

    @classmethod
    def of(cls, text: str) -> Scrape:
        names, samples = set(), {}
        for family in text_string_to_metric_families(text):
            names.add(f"{family.name}_total" if family.type == "counter" else family.name)
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return cls(frozenset(names), samples)

    def value(self, name: str, /, **labels: str) -> float | None:
        """Return the one sample that has these labels; None: there is none."""
        found = [
            value for has, value in self.samples.get(name, []) if labels.items() <= has.items()
        ]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None


def scrape(address: str) -> Scrape:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 -- loopback
        return Scrape.of(answer.read().decode())

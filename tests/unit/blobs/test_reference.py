"""A reference names one content of one run, and nothing outside of a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.blobs.reference import Reference, day_of


def test_the_same_bytes_of_a_run_on_a_day_have_one_reference_and_others_another() -> None:
    one = Reference.to(b"data", owner="run", day="20261130")
    assert one == Reference.to(b"data", owner="run", day="20261130")
    others = {
        Reference.to(b"date", owner="run", day="20261130"),
        Reference.to(b"data", owner="other", day="20261130"),
        Reference.to(b"data", owner="run", day="20261201"),
    }
    assert one not in others


@given(st.binary(max_size=100))
def test_it_is_read_as_it_is_written_and_fits_its_bytes_only(data: bytes) -> None:
    reference = Reference.parse(str(Reference.to(data, owner="run-1_a", day="20261130")))
    assert reference.fits(data)
    assert not reference.fits(data + b"x")
    assert not reference.fits(data[:-1] + b"\x00\x01")


@pytest.mark.parametrize(
    "text",
    [
        "",
        7,
        ["20261130"],
        "../../etc/passwd",
        f"20261130/../{'0' * 64}-1",
        f"20261130/a/b/{'0' * 64}-1",
        f"20261130/run/{'0' * 64}-1\n",
        f"20261130/run/{'0' * 63}-1",
        f"/20261130/run/{'0' * 64}-1",
        f"٢٠٢٦١١٣٠/run/{'0' * 64}-1",
    ],
)
def test_what_is_no_reference_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no reference to a blob"):
        Reference.parse(text)


def test_days_sort_as_text() -> None:
    days = [day_of(second * 86_400.0) for second in range(0, 40_000, 500)]
    assert days == sorted(days)
    assert days[0] == "19700101"

"""`python -m tests.contract.wire [--record]`: compare what is written today with what was recorded."""

from __future__ import annotations

import sys

from tests.contract.wire.recordings import Refused, differences, made, record


def main() -> int:
    """Return the exit code: 0 where nothing has changed."""
    found = made()
    if "--record" in sys.argv[1:]:
        try:
            print("recorded:", *record(found) or ["nothing new"])
        except Refused as refused:
            print(refused)
            return 1
        return 0
    changed = [one for file, new in found.items() for one in differences(file, new)]
    print("\n".join(changed) or "all as recorded")
    return int(bool(changed))


sys.exit(main())

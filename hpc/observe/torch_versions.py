"""With which torch the hooks were tried."""

from __future__ import annotations

TRIED = ("2.4", "2.6", "2.9", "2.13", "2.15")
"""By `make torch-versions` and, the one of constraints.txt, by all tests: in their order."""


def untried(version: str) -> str:
    """What a person should know of a torch newer or older than those; empty: nothing."""
    parts = [int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdigit()]
    tried = [[*map(int, each.split("."))] for each in TRIED]
    if len(parts) == 2 and tried[0] <= parts <= tried[-1]:
        return ""
    named = "functions that are missing or take other arguments are named, other changes may not show"
    return f"hooks were tried with torch {', '.join(TRIED)}; this is {version}: {named}"

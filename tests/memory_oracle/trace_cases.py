"""Traces cases given as JSON on standard input and prints bytes by moment and category: one process for all of them."""

from __future__ import annotations

import json
import sys

from memory_oracle.case import Case
from memory_oracle.step import traced_step


def main() -> None:
    """A list of cases in, a list of {moment → {category → bytes}} out."""
    traced = [traced_step(Case(**fields)) for fields in json.load(sys.stdin)]
    json.dump([{moment.name: moment.by_category for moment in step.moments} for step in traced], sys.stdout)


if __name__ == "__main__":
    main()

"""Check every rule, print what breaks one, a line each, and exit with 1 where something does."""

from __future__ import annotations

import sys

from scripts.lint import mirror, planted, sizes, words

problems = [line for rule in (words, sizes, planted, mirror) for line in rule.check()]
print(*problems, sep="\n", end="\n" if problems else "")
print(f"{len(problems)} problems" if problems else "words, sizes, planted bugs, mirrored tests: no problem")
sys.exit(bool(problems))

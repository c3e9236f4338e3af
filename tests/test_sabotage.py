"""Planted bugs: each is put into a copy of the tree, and the tests named beside it must fail there."""

from __future__ import annotations

import pytest
from planted import check_clean, plant_and_test
from planted_bugs import PLANTED


@pytest.mark.slow
@pytest.mark.long
def test_without_a_bug_all_tests_pass():
    check_clean(PLANTED)


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.few(3)
def test_planted_bug_is_caught(bug):
    plant_and_test(bug, *PLANTED[bug])

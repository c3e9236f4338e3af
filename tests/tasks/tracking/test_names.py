"""Names of metrics are such as MLflow takes, whatever a part or a benchmark is called."""

from __future__ import annotations

import pytest
from mlflow.utils.validation import _validate_metric_name

from tasks.tracking.names import clean


@pytest.mark.parametrize(
    "name",
    ["rlvr/pass@1", "method/./my_shaping.py:half/changed_share", "method/../parts/my.py/share", "a/./../b", "../x", "sums, again/pass@8"],
)  # fmt: skip
def test_what_mlflow_takes(name):
    _validate_metric_name(clean(name))


def test_other_names_stay_as_they_are():
    assert [clean(name) for name in ("a.b/c.d", "method/half./x", "loss/x")] == ["a.b/c.d", "method/half./x", "loss/x"]

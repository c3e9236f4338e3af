"""What a model folder's JSON files may hold."""

from __future__ import annotations

import pytest

from pipelines.base.errors import ModelError
from pipelines.engine import model_files


def test_nan_is_no_setting_of_a_model_and_an_infinite_limit_is(tmp_path):
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "rope_theta": 1e4}')
    assert model_files.check_json(tmp_path)["config.json"]["time_step_limit"] == [0.0, float("inf")]
    (tmp_path / "config.json").write_text('{"rms_norm_eps": NaN}')
    with pytest.raises(ModelError, match=r"config\.json is not JSON \(it holds NaN"):
        model_files.check_json(tmp_path)

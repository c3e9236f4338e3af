"""The comparison in parameter space: known values, invariances, and folders that are read tensor by tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from evaluation.weights import angles, changed, compare_tensors, compare_weights, overlaps, spectrum, stable_rank
from pipelines.base.errors import ModelError


def svd(matrix):
    return torch.linalg.svd(matrix, full_matrices=False)


def test_values_that_are_known():
    draw = np.random.default_rng(0)
    old = torch.tensor(draw.normal(size=(4, 4)))
    new = old + torch.tensor(1e-2 * draw.normal(size=(4, 4)))
    entry = spectrum(svd(old), svd(new), 2)
    assert entry["spectral_shift"] == pytest.approx(0.002651, abs=1e-6)
    degrees = angles(svd(old)[0][:, :2], svd(new)[0][:, :2])
    assert degrees.tolist() == pytest.approx([0.011030, 1.117044], abs=1e-5)
    assert (entry["left_angle_mean"], entry["left_angle_max"]) == pytest.approx(
        (float(degrees.mean()), 1.117044), abs=1e-5
    )
    weights = torch.tensor([1.0, 0.5, -0.25, 0.01, 2.0])
    assert changed(weights, weights + torch.tensor([1e-3, 1e-3, 1e-3, 1e-5, 8e-3])).float().mean() == pytest.approx(0.4)


def test_equal_weights_have_not_moved():
    weights = torch.randn(12, 30)
    entry = compare_tensors(weights, weights.clone())
    assert entry["changed"] == entry["changed_bfloat16"] == entry["relative_change"] == entry["spectral_shift"] == 0
    assert max(entry["left_angle_max"], entry["right_angle_max"]) < 1e-3 and entry["stable_rank_of_change"] == 0
    assert entry["overlap_principal"] is None, "nothing changed"


@given(st.integers(0, 10_000), st.floats(0.1, 3))
def test_scaling_shifts_the_spectrum_and_turns_nothing(seed, factor):
    weights = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    entry = spectrum(svd(weights), svd(factor * weights), 2)
    assert entry["spectral_shift"] == pytest.approx(abs(factor - 1), abs=1e-9)
    assert entry["left_angle_max"] < 1e-4 and entry["right_angle_max"] < 1e-4


@given(st.integers(0, 10_000))
def test_a_common_rotation_changes_no_measure(seed):
    draw = torch.Generator().manual_seed(seed)
    old, step = (torch.randn(6, 9, generator=draw, dtype=torch.float64) for _ in range(2))
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64))[0]
    new = old + 0.1 * step
    plain, turned = spectrum(svd(old), svd(new), 2), spectrum(svd(turn @ old), svd(turn @ new), 2)
    assert all(turned[name] == pytest.approx(plain[name], abs=1e-6) for name in plain)


def test_a_turned_subspace_has_the_angle_it_was_turned_by():
    for degrees in (1e-4, 0.5, 30.0, 44.9, 45.1, 89.0, 90.0):
        turn = np.deg2rad(degrees)
        old, new = torch.eye(3, dtype=torch.float64)[:, :1], torch.tensor([[np.cos(turn)], [np.sin(turn)], [0.0]])
        assert angles(old, new).item() == pytest.approx(degrees, rel=1e-6)
    assert stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(1.5)
    assert stable_rank(torch.outer(torch.arange(3.0), torch.ones(4))) == pytest.approx(1.0)


def test_overlap_of_random_changes_is_chance_and_of_planted_ones_is_not():
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(100, 200, generator=draw)
    left, values, right = svd(old)
    principal = (left[:, :10] * values[:10]) @ right[:10]
    random = torch.rand(old.shape, generator=draw) < 0.3
    shares = overlaps(random, old, principal, 0.1)
    assert shares["overlap_principal"] == pytest.approx(0.1, abs=0.01) == shares["overlap_small"]
    threshold = old.abs().flatten().kthvalue(2000).values
    assert overlaps(old.abs() <= threshold, old, principal, 0.1)["overlap_small"] == pytest.approx(1.0)
    top = principal.abs() >= principal.abs().flatten().topk(2000).values[-1]
    assert overlaps(top, old, principal, 0.1)["overlap_principal"] == pytest.approx(1.0)


def folder(path, tensors, shards=1):
    path.mkdir()
    names = sorted(tensors)
    for i in range(shards):
        save_file({name: tensors[name] for name in names[i::shards]}, path / f"model-{i}.safetensors")
    return path


def test_folders_are_compared_tensor_by_tensor(tmp_path):
    base = {"embed": torch.randn(40, 16), "norm": torch.ones(16), "head": torch.randn(16, 40), "gone": torch.ones(2)}
    tuned = {"embed": base["embed"], "norm": base["norm"] * 1.5, "head": base["head"] + 0.1, "come": torch.ones(3)}
    seen = []
    body = compare_weights(folder(tmp_path / "a", base), folder(tmp_path / "b", tuned, shards=2), seen.append)
    assert [t["name"] for t in body["tensors"]] == ["embed", "head", "norm"] and len(seen) == 3
    assert body["only_before"] == ["gone"] and body["only_after"] == ["come"]
    by_name = {t["name"]: t for t in body["tensors"]}
    assert (
        by_name["embed"]["changed"] == 0 and by_name["norm"]["changed"] == 1 and "spectral_shift" not in by_name["norm"]
    )
    expected = (by_name["head"]["changed"] * 640 + 16) / (640 + 640 + 16)
    assert body["summary"]["changed"] == pytest.approx(expected)
    assert body["summary"]["parameters"] == 1296
    with pytest.raises(ModelError, match="no weights in common"):
        compare_weights(tmp_path / "a", folder(tmp_path / "c", {"other": torch.ones(2)}))
    (tmp_path / "d").mkdir()
    with pytest.raises(ModelError, match="holds no"):
        compare_weights(tmp_path / "a", tmp_path / "d")

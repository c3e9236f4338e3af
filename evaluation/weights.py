"""Two checkpoints in parameter space: what share of the weights an update changed, and along which directions.

The measures of "The Path Not Taken: RLVR Provably Learns Off the Principals" (2511.08567): RLVR is found to leave spectrum and principal
subspaces almost as they are and to change few weights that bfloat16 can tell apart; SFT moves the principal weights. Tensors are
read one pair at a time, so the memory needed is that of the largest tensor and its decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipelines.base.errors import ModelError

UNCHANGED = 1e-3
"""Relative difference up to which two bfloat16 values count as equal: below half of its spacing, 2**-9."""
RANK_SHARE = 0.1
"""Share of the smaller dimension that is the principal subspace."""
MASK_SHARE = 0.1
"""Share of a matrix's elements in the masks of principal and of small weights."""
SMALL_GAP = 1e-3
"""Relative gap between the singular values at the subspace's edge under which its angles say little."""
Progress = Callable[[str], None]


def compare_weights(before: Path, after: Path, progress: Progress = lambda what: None) -> dict[str, Any]:
    """What changed from one model folder to another.

    Returns:
        `tensors`, one entry each in the order of their names (`compare_tensors`, with its name); `summary`, means over parameters; and
        `only_before`, `only_after`, `other_shape`: names of tensors that cannot be compared.

    Raises:
        ModelError: a folder has no safetensors, or the two have no tensor in common.
    """
    old_files, new_files = _files(before), _files(after)
    shared = sorted(old_files.keys() & new_files.keys())
    tensors, other_shape = [], []
    for number, name in enumerate(shared, 1):
        progress(f"{name} ({number} of {len(shared)})")
        old, new = _read(old_files[name], name), _read(new_files[name], name)
        if old.shape != new.shape:
            other_shape.append(name)
        elif old.is_floating_point():
            tensors.append({"name": name, **compare_tensors(old.float(), new.float())})
    if not tensors:
        raise ModelError(f"{before} and {after} have no weights in common, so they cannot be compared.")
    return {
        "tensors": tensors,
        "summary": _summary(tensors),
        "only_before": sorted(old_files.keys() - new_files.keys()),
        "only_after": sorted(new_files.keys() - old_files.keys()),
        "other_shape": other_shape,
    }


def compare_tensors(old: Tensor, new: Tensor) -> dict[str, Any]:
    """An update of one tensor, float32.

    Returns:
        `shape`; `changed` and `changed_bfloat16`, shares of the elements; `relative_change`, ||new - old|| / ||old|| (1 where the
        old one is all 0); and for matrices what `spectrum` and `overlaps` say.
    """
    moved = changed(old, new)
    size = float(torch.linalg.vector_norm(old))
    change = float(torch.linalg.vector_norm(new - old))
    entry: dict[str, Any] = {
        "shape": list(old.shape),
        "changed": float((old != new).double().mean()),
        "changed_bfloat16": float(moved.double().mean()),
        "relative_change": change / size if size else float(change > 0),
    }
    if old.ndim == 2 and min(old.shape) >= 2:
        left_vectors, values, right_vectors = torch.linalg.svd(old, full_matrices=False)
        rank = max(1, math.ceil(RANK_SHARE * min(old.shape)))
        entry |= spectrum((left_vectors, values, right_vectors), torch.linalg.svd(new, full_matrices=False), rank)
        entry["stable_rank_of_change"] = stable_rank(new - old)
        entry |= overlaps(moved, old, (left_vectors[:, :rank] * values[:rank]) @ right_vectors[:rank], MASK_SHARE)
    return entry


def changed(old: Tensor, new: Tensor) -> Tensor:
    """Elements that bfloat16 tells apart, bool.

    >>> w = torch.tensor([1.0, 0.5, -0.25, 0.01, 2.0])
    >>> changed(w, w + torch.tensor([1e-3, 1e-3, 1e-3, 1e-5, 8e-3])).tolist()
    [False, False, True, False, True]
    """
    a, b = old.bfloat16().float(), new.bfloat16().float()
    return (a - b).abs() > UNCHANGED * torch.maximum(a.abs(), b.abs())


def spectrum(
    old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], rank: int
) -> dict[str, float | int | bool]:
    """How singular values and principal subspaces moved.

    Args:
        old: left vectors [m, r], singular values [r] in descending order, right vectors [r, n].
        new: the same of the other matrix.
        rank: dimensions of the principal subspaces.

    Returns:
        `spectral_shift`, ||sigma(new) - sigma(old)|| / ||sigma(old)||; the largest and mean angle between the left and the right
        principal subspaces, degrees; `rank`; and `gap`, (sigma_k - sigma_k+1) / sigma_k of the old one: where it is tiny, the subspace is
        not well defined (`angles_well_defined`).
    """
    (old_left, old_values, old_right), (new_left, new_values, new_right) = old, new
    size = float(torch.linalg.vector_norm(old_values))
    left_angles = angles(old_left[:, :rank], new_left[:, :rank])
    right_angles = angles(old_right[:rank].T, new_right[:rank].T)
    edge, beyond = float(old_values[rank - 1]), float(old_values[rank]) if rank < len(old_values) else 0.0
    gap = (edge - beyond) / edge if edge else 0.0
    return {
        "spectral_shift": float(torch.linalg.vector_norm(new_values - old_values)) / size if size else 0.0,
        "left_angle_max": float(left_angles.max()), "left_angle_mean": float(left_angles.mean()),
        "right_angle_max": float(right_angles.max()), "right_angle_mean": float(right_angles.mean()),
        "rank": rank, "gap": gap, "angles_well_defined": gap >= SMALL_GAP,
    }  # fmt: skip


def angles(old: Tensor, new: Tensor) -> Tensor:
    """Principal angles between the spans of two orthonormal bases [n, k], degrees, ascending.

    Small ones come from the sine: the cosine of an angle below a hundredth of a degree is 1 in float32.
    """
    old, new = old.double(), new.double()
    cosines = torch.linalg.svdvals(old.T @ new).clamp(0, 1)
    sines = torch.linalg.svdvals(new - old @ (old.T @ new)).clamp(0, 1).flip(0)
    return torch.rad2deg(torch.where(cosines**2 > 0.5, sines.asin(), cosines.acos()))


def stable_rank(matrix: Tensor) -> float:
    """||M||_F^2 / ||M||_2^2; 0 for a zero matrix."""
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    return float(matrix.double().square().sum()) / largest**2 if largest else 0.0


def overlaps(moved: Tensor, old: Tensor, principal: Tensor, share: float) -> dict[str, float | None]:
    """How much of the changed elements lies among the principal and among the small weights; by chance it would be `share`.

    Args:
        moved: bool, of the matrix's shape.
        old: the matrix.
        principal: its low-rank reconstruction, whose largest elements are the principal weights.
        share: of the elements in each mask.

    Returns:
        `overlap_principal`, `overlap_small`; None where nothing changed.
    """
    if not moved.any():
        return {"overlap_principal": None, "overlap_small": None}
    count = max(1, round(share * old.numel()))
    moved_mask = moved.flatten()
    largest = principal.abs().flatten().topk(count).indices
    smallest = old.abs().flatten().topk(count, largest=False).indices
    total = float(moved_mask.sum())
    return {
        "overlap_principal": float(moved_mask[largest].sum()) / total,
        "overlap_small": float(moved_mask[smallest].sum()) / total,
    }


def _summary(tensors: list[dict[str, Any]]) -> dict[str, float]:
    """Means over parameters: each tensor counts by its elements; angles and overlaps over the matrices that have them."""
    names = (
        "changed", "changed_bfloat16", "relative_change", "spectral_shift", "left_angle_mean", "left_angle_max", "right_angle_mean",
        "right_angle_max", "stable_rank_of_change", "overlap_principal", "overlap_small",
    )  # fmt: skip
    summary: dict[str, float] = {"parameters": float(sum(math.prod(t["shape"]) for t in tensors))}
    for name in names:
        present = [
            (t[name], math.prod(t["shape"])) for t in tensors if t.get(name) is not None and math.isfinite(t[name])
        ]
        if name.endswith("_max") and present:
            summary[name] = max(value for value, _ in present)
        elif present:
            summary[name] = sum(value * count for value, count in present) / sum(count for _, count in present)
    return summary


def _files(folder: Path) -> dict[str, Path]:
    """Tensor → the file that holds it."""
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not paths:
        raise ModelError(f"{folder} holds no *.safetensors, so its weights cannot be compared.")
    files: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, "pt") as handle:
            files |= dict.fromkeys(handle.keys(), path)
    return files


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, "pt") as handle:
        return handle.get_tensor(name)

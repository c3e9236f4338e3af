"""The comparison of weights as lines for a terminal, and what the page shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SHOWN = 8
"""Tensors on the terminal: those that changed most."""


def lines(body: dict[str, Any]) -> Iterator[str]:
    """What changed between the weights of two checkpoints, for a terminal."""
    for pair in body.get("weights", []):
        yield f"\nWeights: {pair['old']} → {pair['new']}"
        yield f"  {summary(pair['summary'])}"
        for note in notes(pair):
            yield f"  note: {note}"
        most = sorted(pair["tensors"], key=lambda t: -t["relative_change"])[:SHOWN]
        for tensor in most if most and most[0]["relative_change"] else []:
            yield f"  {tensor['name']}: {', '.join(cells(tensor)[2:])}"


def summary(of: dict[str, float]) -> str:
    """All parameters in one sentence."""
    parts = [
        f"{of['parameters']:,.0f} parameters, {100 * of['changed']:.1f} % changed, {100 * of['changed_bfloat16']:.1f} % so that bfloat16 "
        f"tells them apart; relative change {of['relative_change']:.2g}"
    ]
    if "spectral_shift" in of:
        parts.append(
            f"spectral shift {of['spectral_shift']:.2g}; principal subspaces turned by {of['left_angle_mean']:.2g} (left) and "
            f"{of['right_angle_mean']:.2g} (right) degrees on average, {max(of['left_angle_max'], of['right_angle_max']):.2g} at most"
        )
    if "overlap_principal" in of:
        parts.append(
            f"of the changed weights {100 * of['overlap_principal']:.0f} % are principal and {100 * of['overlap_small']:.0f} % small "
            "ones (by chance 10 %)"
        )
    return "; ".join(parts)


def notes(pair: dict[str, Any]) -> list[str]:
    """What could not be compared, or says little."""
    found_notes = []
    for name, what in (
        ("only_before", "only in the first"),
        ("only_after", "only in the second"),
        ("other_shape", "of another shape"),
    ):
        if pair[name]:
            found_notes.append(f"{len(pair[name])} tensors are {what} ({', '.join(pair[name][:3])})")
    loose = [t["name"] for t in pair["tensors"] if t.get("angles_well_defined") is False]
    if loose:
        found_notes.append(
            f"{len(loose)} matrices have no gap at the edge of their principal subspace, so its angle says little ({loose[0]})"
        )
    return found_notes


def cells(tensor: dict[str, Any]) -> list[str]:
    """A tensor as a row: name, shape, changed in bfloat16, relative change, spectral shift, angle, overlaps."""
    row = [tensor["name"], "×".join(map(str, tensor["shape"])), f"{100 * tensor['changed_bfloat16']:.1f} % changed",
           f"relative change {tensor['relative_change']:.2g}"]  # fmt: skip
    if "spectral_shift" in tensor:
        largest = max(tensor["left_angle_max"], tensor["right_angle_max"])
        row += [f"spectral shift {tensor['spectral_shift']:.2g}", f"turned by {largest:.2g} degrees"]
    if tensor.get("overlap_principal") is not None:
        row.append(f"principal {100 * tensor['overlap_principal']:.0f} %, small {100 * tensor['overlap_small']:.0f} %")
    return row


HEADER = ("tensor", "shape", "in bfloat16", "update", "spectrum", "principal subspace", "changed weights that are")


def page_part(pair: dict[str, Any]) -> dict[str, Any]:
    """The same for the page, with every tensor: title, summary, notes, rows below `HEADER`."""
    rows = [[*cells(tensor), *["–"] * (len(HEADER) - len(cells(tensor)))] for tensor in pair["tensors"]]
    title = f"Weights: {pair['old']} → {pair['new']}"
    return {"title": title, "summary": summary(pair["summary"]), "notes": notes(pair), "header": HEADER, "rows": rows}

"""How near a text is in meaning to the answer, by an encoder (Shaping Explanations, arXiv 2509.13081).

cos = cosine of the mean-pooled vectors of the two texts; score = max(0, (cos - floor) / (1 - floor)). `info`: `encoder` (a transformers
model: a folder or a hub name), `floor` (default 0.3: encoders rarely go lower for texts of one topic), `threshold` (cosine from which
the text is correct, default 0.9), `gate` (`{verifier, answer, info}`: the score is 0 unless that verifier accepts the completion,
because a fluent explanation of a wrong answer is near too). The floor is ours; the paper gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any

from pipelines.verifiers import verify as verify_row
from pipelines.verifiers._compound import BadPart, Row, part
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, failed

FLOOR, THRESHOLD = 0.3, 0.9


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The rescaled cosine, 0 where the gate is closed.

    Raises:
        DataError: the encoder cannot be loaded.
    """
    return verify_row("semantic", completion, answer, info)


def parts(completion: str, answer: str, info: dict[str, Any]) -> list[Row]:
    """The gate, where there is one.

    Raises:
        BadPart: the row cannot be read.
    """
    bounds = (info.get("floor", FLOOR), info.get("threshold", THRESHOLD))
    if not all(isinstance(b, int | float) and isfinite(b) and -1 <= b <= 1 for b in bounds) or bounds[0] == 1:
        raise BadPart("floor is from -1 to below 1, threshold from -1 to 1")
    if not isinstance(info.get("encoder"), str) or not answer.strip():
        raise BadPart("info.encoder names a model, and the answer is the text to compare with")
    return [part(info["gate"], completion)] if info.get("gate") else []


def combine(rows: Sequence[tuple[str, str, dict[str, Any]]], verdicts: Sequence[list[Verdict]]) -> list[Verdict]:
    """A verdict for each (completion, answer, info) row, from that of its gate.

    Raises:
        DataError: an encoder cannot be loaded.
    """
    near = cosines([(completion, answer, info["encoder"]) for completion, answer, info in rows])
    return [_verdict(cosine, info, gates) for cosine, (_, _, info), gates in zip(near, rows, verdicts, strict=True)]


def _verdict(cosine: float | None, info: dict[str, Any], gates: list[Verdict]) -> Verdict:
    if cosine is None:
        return UNPARSABLE
    if isnan(cosine):
        return failed("Reference")
    opened = all(gate.correct for gate in gates)
    components = {"cosine": cosine} | ({"gate": float(opened)} if gates else {})
    accepted = opened and cosine >= info.get("threshold", THRESHOLD)
    score = rescaled(cosine, info.get("floor", FLOOR)) if opened else 0.0
    return Verdict(score, "correct" if accepted else "incorrect", components)


def rescaled(cosine: float, floor: float) -> float:
    """A cosine above the floor, as a share of what is above it.

    >>> round(rescaled(0.934551, 0.3), 6), rescaled(0.223146, 0.3)
    (0.906501, 0.0)
    """
    return max(0.0, (cosine - floor) / (1 - floor))


def cosines(pairs: Sequence[tuple[str, str, str]]) -> list[float | None]:
    """The cosine of each (text, reference, encoder); None for a text that is empty or too long to be encoded, NaN for
    such a reference.

    Raises:
        DataError: an encoder cannot be loaded.
    """
    from pipelines.verifiers._encoder import encoder

    values: list[float | None] = [None] * len(pairs)
    for path in dict.fromkeys(pair[2] for pair in pairs):
        own = [i for i, pair in enumerate(pairs) if pair[2] == path]
        texts = list(dict.fromkeys(text for i in own for text in pairs[i][:2]))
        vectors = dict(zip(texts, encoder(path).embed(texts), strict=True))
        for i in own:
            text, reference = (vectors[text] for text in pairs[i][:2])
            if not reference.any():
                values[i] = nan
            elif text.any():
                values[i] = float(text @ reference)
    return values

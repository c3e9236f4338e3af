"""Completions that somebody has, scored by a verifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from whetstone_rlvr.errors import explained, in_parameters
from whetstone_rlvr.recipes import listed

if TYPE_CHECKING:
    import pandas as pd


@explained
def verify(
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
    verifier: str | None = None,
    *,
    plugins: Iterable[str] = (),
    sandbox: Literal["auto", "limits_only"] = "auto",
) -> pd.DataFrame:
    """Score completions, as `whetstone verify` does: a verdict for each row, in order.

    Args:
        rows: of `completion`, `answer`, and where they have it `verifier` and `info`, as a frame, dicts or a dataset; other columns come
            back.
        verifier: for rows that name none; also `FILE.py`, `FILE.py:FUNCTION` or `MODULE:FUNCTION`.
        plugins: files or modules of your own that bring verifiers, as a recipe's `plugins` names them.
        sandbox: how programs are confined, as in a recipe.

    Returns:
        the rows' other columns, `line` (from 1), `verifier`, `score`, `status` and `components`; a row that is none has the status
        `bad_row` and says why in `error`.

    Raises:
        UserError: there is no such verifier or plug-in.

    >>> rows = [{"completion": "So it is 7.", "answer": "7"}, {"completion": "8", "answer": "7"}]
    >>> whetstone.verify(rows, verifier="number")[["score", "status"]]
       score     status
    0    1.0    correct
    1    0.0  incorrect
    """
    import pandas as pd

    from pipelines.base import plugins as known_plugins
    from pipelines.sandbox import pool as sandboxes
    from pipelines.verifiers import _sandboxed
    from tasks.verify_rows import as_output, check_verifier, row_of, verdicts

    known_plugins.activate(listed(plugins))
    check_verifier(verifier, "verifier")
    sandboxes.configure(limits_only=sandbox == "limits_only")
    _sandboxed.be_patient()
    if isinstance(rows, pd.DataFrame):
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    read = [row_of(row, number, verifier) for number, row in enumerate(rows, 1)]
    judged = verdicts(read)
    for row in read:
        row.bad = in_parameters(row.bad, ["verifier"])
    scored = [as_output(row, verdict) for row, verdict in zip(read, judged, strict=True)]
    columns = dict.fromkeys(["line", "verifier", "score", "status", "components"])
    others = dict.fromkeys(name for row in scored for name in row if name not in columns)
    return pd.DataFrame(
        scored, columns=[*(n for n in others if n != "error"), *columns, *(n for n in others if n == "error")]
    )

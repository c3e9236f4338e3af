"""The file of claims: what papers claim, what was run here to see it, and with what experiment it is run again."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pipelines.base.errors import UserError

CLAIMS = Path(__file__).with_name("claims.yaml")


class Verdict(StrEnum):
    """What a run here says of a paper's claim."""

    CONFIRMED = "seen"
    PART = "seen in part"
    NOT_SEEN = "not seen"
    CONTRADICTED = "contradicted"
    TOO_SMALL = "too small"


class Claim(BaseModel):
    """A paper's central claim, tried.

    Attributes:
        system: name of the system; of a preset whose paper is on none of the lists, the preset's.
        claim: one sentence.
        run: `place:name` of what was run.
        size: task, size, seeds and budget, and how the learning rate was chosen.
        outcome: the difference, with its 95 % interval; None where a stored result of the experiment has it.
        verdict: what that says of the claim.
        why: the most likely reason; None where the claim is seen.
        results: page of docs and heading where a measurement stands, of one seed where a stored result has more.
        experiment: what `whetstone claims run` runs, as `tasks.sweep.arms.Experiment`; None where the form does not hold it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    system: str
    claim: str
    run: str
    size: str
    outcome: str | None = None
    verdict: Verdict
    why: str | None = None
    results: str
    experiment: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        if (self.why is None) != (self.verdict == Verdict.CONFIRMED):
            raise ValueError(f"{self.system}: a claim that is not simply seen says why, and one that is does not")
        if self.outcome is None and self.experiment is None:
            raise ValueError(f"{self.system}: a claim without an experiment has its outcome here")
        return self


@cache
def claims() -> dict[str, Claim]:
    """Name of a system → its claim, of all systems that one was tried of, in the order of the file.

    Raises:
        UserError: an entry of the file contradicts itself.
    """
    return claims_of(str(CLAIMS))


def claims_of(path: str) -> dict[str, Claim]:
    """As `claims`, of another file.

    Raises:
        UserError: names the file, or the entry and its field, and the fix.
    """
    fix = "Write it as flows/cli/claims.yaml."
    try:
        entries = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(path, str(error).splitlines()[0], fix) from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(path, "is no list of claims", fix)
    read = {}
    for place, entry in enumerate(entries):
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, (entry.get("system", place), *first["loc"])))
            raise UserError(f"{path}: {name}", first["msg"].removeprefix("Value error, "), fix) from None
        read[claim.system] = claim
    return read

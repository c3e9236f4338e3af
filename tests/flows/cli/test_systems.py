"""The file of systems beside the code: whatever it names exists, and every preset of a paper stands in it."""

from __future__ import annotations

import json
import re

import pytest
import toys
import yaml
from headings import slug
from pydantic import ValidationError

from flows.cli import catalogue as listing
from flows.cli import claim_file, systems
from flows.cli import main as cli
from flows.cli.systems import Status, System
from pipelines import environments, verifiers
from pipelines.base.errors import UserError
from pipelines.contract import catalogue
from pipelines.recipe.read import PRESETS, preset_names
from pipelines.recipe.slots import MONITORS
from pipelines.recipe.stage_kind import stage_kinds

GENERAL = {
    "ppo", "grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "dapo", "dapo_carry", "dr_grpo", "gspo", "cispo", "sapo", "gmpo",
    "dppo_tv", "dppo_kl", "vespo", "luspo", "gdpo", "gpg", "grpo_passk", "maxrl", "opo",
    "icepop", "decoupled_ppo", "m2po", "deepseek_v32",
    "high_entropy", "skywork_or1", "kl_cov", "ce_gppo", "dro", "gfpo",
    "clip_cov", "asymmetric_is", "bapo", "gvpo", "delightful", "remax", "otb", "vapo", "a_star_po",
    "luffy", "ttrl", "intuitor", "rent", "rlpr", "verifree", "online_dpo", "dr_mas", "flowrl", "minillm", "reinforce_ada", "nash_md",
    "xpo", "absolute_zero",
}  # fmt: skip
"""Presets of papers that stand in none of the lists."""
OTHERS = {"on_policy_distillation", "gkd", "gold", "gold_sampled", "sdpo", "sdft", "tree_grpo", "prime"}
COMMANDS = {"compare", "overoptimisation", "report", "rubric", "sweep", "tournament"}
USES = [(known.name, use) for known in systems.systems() for use in known.uses]


def exists(use: str) -> bool:
    place, _, name = use.partition(":")
    if place == "preset":
        return name in preset_names()
    if place == "method":
        slot, _, method = name.rpartition(".")
        return slot in listing.PLACES and method in catalogue.names(listing.room(slot))
    if place == "loss":
        stage, _, loss = name.partition(".")
        return stage in stage_kinds() and loss in catalogue.names(f"{stage}.loss")
    if place == "recipe":
        return (toys.ROOT / "recipes" / f"{name}.yaml").is_file()
    if place == "stage":
        return name in stage_kinds()
    if place == "verifier":
        return verifiers.load(name) is not None
    if place == "monitor":
        return name in catalogue.names(MONITORS)
    if place == "environment":
        return name in environments.known()
    return place == "command" and name in COMMANDS


@pytest.mark.parametrize("name,use", USES, ids=[f"{name}-{use}" for name, use in USES])
def test_what_a_system_uses_exists(name, use):
    assert use.partition(":")[0] in systems.PLACES and exists(use)


def test_commands_are_the_parser_s():
    assert set(cli.parser()._subparsers._group_actions[0].choices) >= COMMANDS


def test_nothing_that_does_not_exist_passes():
    assert not any(
        exists(f"{place}:nothing") for place in systems.PLACES if place not in ("verifier", "method", "loss")
    )
    assert (
        not exists("loss:preference.nothing")
        and not exists("method:advantage.nothing")
        and not exists("method:nothing.grpo")
    )


def test_every_preset_stands_under_a_system():
    named = {use.partition(":")[2] for _, use in USES if use.startswith("preset:")}
    assert set(preset_names()) - GENERAL - OTHERS <= named, "add the system of the new preset to flows/cli/systems.yaml"
    assert all((PRESETS / f"{name}.yaml").is_file() for name in GENERAL | OTHERS)


def test_names_are_unique_and_counts_add_up():
    names = [known.name.lower() for known in systems.systems()]
    assert len(set(names)) == len(names) == 225
    assert sum(len([k for k in systems.systems() if k.status == status]) for status in Status) == 225


@pytest.mark.parametrize(
    "fields,words",
    [
        ({"outside": "robots", "uses": ("preset:grpo",), "about": "x"}, "what is outside"),
        ({}, "nothing uses it"),
        ({"uses": ("preset:grpo",), "about": "x", "needs": ("tools",)}, "though nothing is missing"),
        ({"uses": ("preset:grpo",)}, "go together"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        System(name="a", title="b", group="c", **fields)


def test_status():
    known = {"name": "a", "title": "b", "group": "c"}
    assert System(**known, outside="robots").status == "outside"
    assert System(**known, missing="all").status == "not yet"
    assert System(**known, missing="half", uses=("preset:grpo",), about="d").status == "in part"
    assert System(**known, uses=("preset:grpo",), about="d").status == "works"


def test_one_is_found_by_its_short_name():
    assert systems.find("skywork r1v2").name == "Skywork R1V2 (SSB)"
    with pytest.raises(UserError, match="Did you mean 'ArenaRL'"):
        systems.find("ArenaL")


def test_page_and_table(capsys):
    assert systems.show("A-GRAE", None, False) == 0
    assert "status: works" in (text := capsys.readouterr().out) and "presets: [a_grae]" in text
    assert systems.show(None, "outside", True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {entry["status"] for entry in printed} == {"outside"} and len(printed) > 10
    assert systems.show(None, None, False) == 0
    assert "225 systems:" in capsys.readouterr().out


def test_the_file_has_no_unknown_keys():
    body = yaml.safe_load(systems.FILE.read_text())
    body["language models"][0]["surprise"] = 1
    with pytest.raises(ValidationError):
        System(group="x", **body["language models"][0])


@pytest.mark.parametrize("tried", claim_file.claims().values(), ids=lambda tried: tried.system)
def test_a_claim_is_of_a_system_and_its_figures_stand_where_it_says(tried):
    """A figure that is corrected on a page of results is corrected in the table of claims, too."""
    if tried.system not in GENERAL | OTHERS:  # presets of papers that are on no list have claims by their own names
        known = systems.find(tried.system)
        assert known.name == tried.system and known.status != Status.OUTSIDE
    assert exists(tried.run)
    page, _, heading = tried.results.partition("#")
    text = (toys.ROOT / "docs" / page).read_text().replace("−", "-")
    sections = re.split(r"(?m)^#+ ", text)
    under = [part for part in sections if slug(part.splitlines()[0] if part else "") == heading]
    assert len(under) == 1, f"{page} has {len(under)} headings {heading}"
    figures = re.findall(r"\[[-+0-9., ]+\]|\d+\.\d+", tried.outcome or "")
    assert not [figure for figure in figures if figure not in under[0]]


def test_claims_are_told_apart_from_what_is_seen():
    """Each system has one claim at most; a verdict that is not `seen` has a reason."""
    entries = yaml.safe_load(claim_file.CLAIMS.read_text())
    assert len(entries) == len(claim_file.claims())
    entry = next(iter(claim_file.claims().values())).model_dump()
    for verdict, why in (("seen", "because"), ("not seen", None)):
        with pytest.raises(ValidationError, match="says why"):
            claim_file.Claim(**entry | {"verdict": verdict, "why": why})


def test_a_systems_page_has_its_claim(capsys):
    assert systems.show("PrefixRL", None, as_json=False) == 0
    text = capsys.readouterr().out
    assert "claim: RL from prefixes" in text and "not seen: the cold start" in text
    assert systems.show("PrefixRL", None, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["tried"]["verdict"] == "not seen"

"""`whetstone promote`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from flows.cli.arguments import positive

REFUSED = 1
"""Exit code where the gate, or a person, does not promote."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = f"{parser.description}; every look is recorded and paid for"
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run, or its model, that is to be the champion")
    parser.add_argument("--name", help="the registered model; needed where there are several")
    parser.add_argument("--new-name", action="store_true", help="register --name if there is no model of that name yet")
    parser.add_argument(
        "--primary", metavar="TASK", help="the benchmark on which it must be better; default: the first"
    )
    parser.add_argument(
        "--guard",
        action="append",
        metavar="TASK=POINTS",
        help="a benchmark that may lose less than so many points (repeatable; default: every other one, with --margin)",
    )
    parser.add_argument("--margin", type=float, default=2.0, metavar="POINTS", help="what guards may lose (2)")
    parser.add_argument(
        "--alpha", type=float, default=0.05, help="chance of a false promotion over all looks at one champion (0.05)"
    )
    parser.add_argument(
        "--looks", type=int, default=30, help="looks that share half of alpha, such as the nights of a month (30)"
    )
    parser.add_argument("--ask", action="store_true", help="wait for a person's approval on the Prefect server's page")
    parser.add_argument(
        "--ask-hours", type=positive, default=24.0, metavar="HOURS", help="how long to wait for it (24)"
    )
    parser.add_argument("--rollback", action="store_true", help="give the alias back to the champion before this one")
    parser.add_argument("--status", action="store_true", help="the champion, those before it, and the looks it has had")
    parser.add_argument("--json", action="store_true", help="for machines: the evidence as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from pipelines.base.errors import UserError
    from tasks.promotion import promote as promotion

    if arguments.status:
        return _show(promotion.status(arguments.name), arguments.json)
    if arguments.rollback:
        result = promotion.rollback(arguments.name)
        if arguments.json:
            print(json.dumps(result, indent=1))
        else:
            after = f"version {result['to']} is the champion again" if result["to"] else "there is no champion now"
            print(f"{result['name']}: version {result['from']} was rolled back; {after}")
        return 0
    if not arguments.run:
        raise UserError("promote", "name a run or model, or use --status or --rollback.")
    if arguments.new_name and not arguments.name:
        raise UserError("--new-name", "say which with --name.")
    from tasks.promotion.rule import rule_of

    rule = rule_of(arguments.primary, arguments.guard, arguments.margin, arguments.alpha, arguments.looks)
    if arguments.ask:
        from tasks import environment

        if environment.prefect_api() is None:  # said before Prefect is imported, which takes seconds
            raise UserError(
                "--ask", "a person answers on a Prefect server's page", "Start one, and set PREFECT_API_URL."
            )
        from flows import approval

        evidence = approval.ask(arguments.run, arguments.name, rule, arguments.ask_hours, arguments.new_name)
    else:
        from flows.progress import Status

        with Status(quiet=arguments.json) as progress:
            progress("asking the registry for the champion")
            chosen = promotion.candidate(arguments.run, arguments.name, new_name=arguments.new_name)
            progress("testing against the champion")
            evidence = promotion.look(chosen, rule)
            if evidence["promote"]:
                progress("moving the alias")
                promotion.move(chosen, evidence)
    if arguments.json:
        print(json.dumps(evidence, indent=1))
    else:
        _tell(evidence)
    sys.stdout.flush()
    return 0 if evidence["promote"] and evidence.get("approved", True) else REFUSED


def _tell(evidence: dict[str, Any]) -> None:
    from evaluation.pages.page import visible
    from tasks.promotion import promote as promotion

    version = evidence["champion"]["version"]
    champion = "this champion" if version else "no champion"
    print(promotion.compared(evidence))
    print(f"look {evidence['look']} at {champion}, at level {evidence['level']:.2g} of {evidence['rule']['alpha']:g}")
    for line in evidence["why"]:
        print(f"  {visible(line)}")
    if not evidence["promote"]:
        print("not promoted")
    elif not evidence.get("approved", True):
        print("not promoted: the person who was asked said no")
    else:
        print(f"promoted: {evidence['name']}@champion is version {evidence['candidate']['version']}")


def _show(body: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(body, indent=1))
        return 0
    print(
        f"{body['name']}: champion version {body['champion'] or '–'}; champions so far: {', '.join(body['champions']) or 'none'}"
    )
    for each in body["looks"]:
        verdict = "promoted" if each.get("promote") else "not promoted"
        print(
            f"  look {each['look']}  {each.get('time')}  version {each.get('version')}  p = {each.get('p'):.2g}  {verdict}"
        )
    print(f"its looks have spent {body['spent']:.2g} of alpha")
    return 0

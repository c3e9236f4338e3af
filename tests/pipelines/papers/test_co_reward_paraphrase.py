"""A second wording of each problem."""

from __future__ import annotations

import pytest
from scripted import context, request, show

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind

TEMPLATE = "In other words: {prompt}"


def views(conversation, template, **info):
    problem = request("p", 3, group=1, **info)
    problem.problem.prompt[:] = conversation
    part = bind("rlvr.prompting", {"kind": "paraphrase", "template": template}).fn
    first, second = part.build_requests([problem], context(lambda prefix, number: ""))
    assert first is problem and (second.group, second.rollouts) == (3, 3)
    return show(second.prompt)


def says(*texts):
    return [{"role": "user", "content": text} for text in texts]


def test_the_record_s_paraphrase_goes_before_the_template():
    assert views(says("two and two"), TEMPLATE, paraphrase="2 + 2") == "2 + 2"
    assert views(says("two and two"), None, paraphrase="2 + 2") == "2 + 2"


def test_the_template_rewords_the_last_message():
    assert views(says("two and two"), TEMPLATE) == "In other words: two and two"
    assert views(says("a", "b", "c"), TEMPLATE) == "ab" + "In other words: c"


def test_a_problem_without_either_is_refused():
    with pytest.raises(RecipeError, match=r"no info\.paraphrase"):
        views(says("two and two"), None)

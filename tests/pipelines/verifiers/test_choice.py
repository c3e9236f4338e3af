"""The letter that a completion chooses; B is the answer throughout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.verifiers import verify_here

CORRECT = [
    "The answer is: B",
    "**B**",
    "option B",
    "(b)",
    "B.",
    "B) because it is",
    "B",
    "b",
    "Answer: B",
    "answer: (B)",
    "\\boxed{B}",
    "\\boxed{\\text{B}}",
    "<answer>B</answer>",
    "<answer>(b)</answer>",
    "The correct answer is B.",
    "I think the answer is B",
    "B is correct",
    "The correct option is (B) Paris",
    "My choice: B",
    "**Answer:** B",
    "The answer is **B**",
    "B: Paris",
    "[B]",
    "Final answer: B) 42",
    "It must be B",
    "Answer is option B",
    "#### B",
    "I'd go with B.",
    "So the answer is\n\nB",
    "$\\boxed{\\textbf{(B)}}$",
    "A is wrong, so the answer is B.",
    "The answer is B, since A is false.",
    "Answer B",
    "\\boxed{B. Paris}",
    "'B'",
    "B - Paris",
    "Let me think. A seems wrong. The answer should be B.",
    "Ｂ",
    "𝐁",
    "B​",
    "B, not A",
    "The answer is B, not A.",
    "The answer is B. Option A is wrong.",
    "The answer is not A but B.",
    "The answer is A.\nWait, A is wrong. It is B.",
    "B, a city in France",
    "B, since A and C are wrong",
    "I think B",
    "It's B",
    "It’s B.",
    "So B",
    "Therefore B",
    "Thus, B.",
    "Definitely B",
    "Choosing B here",
    "That leaves us with B",
    "which corresponds to B",
    "This matches B.",
    "Statement B is true",
    "Figure B",
    "It is a plan, so B",
    "We rule out Hepatitis C, hence B",
    "Plan B fails. So it must be B.",
    "The vitamin is in B",
    "In Paris, B",
    "Not plan C. The answer is B",
    "IT IS B",
    "The correct answer is B vs. the others",
    "(B) Vitamin C",
    "It is called Paris (B)",
    "Vitamin C (B)",
    "Vitamin C, so (B)",
]

NOT_B = [
    "does not exist",
    "I do not know",
    "A",
    "B or C",
    "The answer is B or C",
    "Either B or C",
    "\\boxed{B, C}",
    "\\boxed{BC}",
    "(A) and (B)",
    "A, B",
    "answered",
    "The answered Bs",
    "C",
    "Bob",
    "be",
    "",
    "The answer is A",
    "<answer>B or C</answer>",
    "<answer>A B</answer>",
    "B/C",
    "The answer is not B",
    "answer because",
    "B and C",
    "A B C D",
    "\\boxed{B} or \\boxed{C}",
    "The answer is unknown b",
    "B is wrong",
    "(B) is incorrect",
    "B is not the answer",
    "The answer isn't B",
    "The answer cannot be B",
    "neither A nor B",
    "A rather than B",
    "All except B",
    "B is wrong, so A",
    "It is A because B is false.",
    "The answer is B (or C)",
    "\\boxed{B (or C)}",
    "\\boxed{B} or C",
    "<answer>B\nC</answer>",
    "<answer>A</answer><answer>B</answer>",
    "The answer is (B)(C)",
    "The answer is B C",
    "The answer is B+C",
    "The answer is B. Wait, it is C.",
    "The answer is B? No.",
    "B12",
    "The band B-52s",
    "Plan B",
    "We need a plan B",
    "The best one is Plan B.",
    "Vitamin B",
    "vitamin B",
    "They lack vitamin B.",
    "Foods rich in B vitamins",
    "B vitamins are good",
    "The answer is B vitamins",
    "Hepatitis B",
    "The patient has hepatitis B.",
    "She has Influenza B",
    "A rapper called Cardi B",
    "type B",
    "Grade B",
    "It was a B movie",
    "in B minor",
    "These are B cells.",
    "I choose C, not plan B",
    "I'd say C, for lack of a plan B",
]

PROSE = ["A lot of things", "I do not know", "I am", "A dog", "It is a tie", "An apple a day", "Plan it well, I say"]


@pytest.mark.parametrize("completion", CORRECT)
def test_correct(completion):
    assert verify_here("choice", completion, "B", {}).status == "correct"


@pytest.mark.parametrize("completion", NOT_B)
def test_not_correct(completion):
    assert verify_here("choice", completion, "B", {}).status in ("incorrect", "unparsable")


@pytest.mark.parametrize("completion", PROSE)
@pytest.mark.parametrize("answer", ["A", "I"])
def test_no_letter_out_of_prose(completion, answer):
    assert not verify_here("choice", completion, answer, {}).correct


@given(st.text(max_size=200))
def test_never_raises(text):
    assert verify_here("choice", text, "B", {}).status in ("correct", "incorrect", "unparsable")

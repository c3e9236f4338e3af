"""Mathematical equality, in the pool that runs it for everybody."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.verifiers import math

CORRECT = [
    ("It is 0.5.", "\\frac{1}{2}"),
    ("So it is \\(3\\sqrt{13}\\).", "3\\sqrt{13}"),
    ("Final Answer: \\(58,500\\)", "58,500"),
    ("Final Answer: \\(x \\in [-2,7]\\)", "x \\in [-2,7]"),
    ("\\boxed{-2, 1}", "-2,1"),
    ("50\\%", "\\frac{1}{2}"),
    ("50%", "1/2"),
    ("\\boxed{50\\%}", "50"),
    ("1 234 567", "1234567"),
    ("\\boxed{12\u2009345}", "12345"),
    ("\\boxed{12 345}", "12345"),
    ("7.", "7"),
    ("\\boxed{7.}", "7"),
    ("\\boxed{\\text{5 cm}}", "5"),
    ("\\boxed{5 \\text{ cm}}", "5"),
    ("\\boxed{5\\text{ cm}^2}", "5 \\text{ cm}^2"),
    ("5", "5\\text{ cm}"),
    ("\\boxed{\\{2,1\\}}", "\\{1,2\\}"),
    ("\\boxed{1,2}", "\\{1,2\\}"),
    ("\\boxed{101_2}", "101_2"),
    ("\\boxed{101}", "101_2"),
    ("\\boxed{5_{10}}", "5"),
    ("\\boxed{5\u2081\u2080}", "5"),
    ("The answer is $12_{\\text{ten}}$.", "12"),
    ("\\boxed{101_2 = 5}", "5"),
    ("$101_2 = 5$", "5"),
    ("\\boxed{x_1 = 5}", "5"),
    ("_5_", "5"),
    ("The answer is __5__.", "5"),
    ("I have 5 _red_ apples", "5"),
    ("\\boxed{\\sum^{10}_{i=1} i}", "55"),
    ("\\boxed{\\log_2 32}", "5"),
    ("\\boxed{3} or \\boxed{4}", "3, 4"),
    ("<answer>5</answer>", "5"),
    ("<answer>\\frac{1}{2}</answer>", "0.5"),
    ("<answer> x^2 + 1 </answer>", "1+x^2"),
    ("<answer>$x^2$</answer>", "x^2"),
    ("<answer>The result is $x^2$</answer>", "x^2"),
    ("\\boxed {7}", "7"),
    ("\\boxed{1<x<3}", "(1,3)"),
    ("\\boxed{1 \\le x < 3}", "[1,3)"),
    ("the answer is $\\frac{2}{4}$", "\\frac{1}{2}"),
    ("$x=5$", "5"),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{2\\sqrt{2}}", "\\sqrt{8}"),
    ("\\boxed{(-\\infty, 3)}", "(-\\infty,3)"),
    ("\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("so $y=3$ and thus the answer is $\\boxed{\\pi}$", "\\pi"),
    ("The answer is $10^{10}$", "10000000000"),
    ("\\boxed{2^{10}}", "1024"),
    ("\\boxed{5!}", "120"),
    ("\\boxed{\\binom{10}{3}}", "120"),
    ("\\boxed{\\sum_{i=1}^{10} i}", "55"),
    ("\\boxed{3\\frac{1}{2}}", "3.5"),
    ("\\boxed{1,000}", "1000"),
    ("\\boxed{\\$5}", "5"),
    ("\\boxed{90^\\circ}", "90"),
    ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}"),
    ("\\boxed{\\text{(B)}}", "\\text{(B)}"),
    ("\\boxed{.5}", "\\frac{1}{2}"),
    ("The answer is **72** dollars.", "72"),
    ("The answer is **$\\frac{1}{2}$**.", "0.5"),
    ("\\boxed{2√2}", "\\sqrt{8}"),
    ("\\boxed{x²+2x}", "x^2+2x"),
    ("\\boxed{(-∞,3]}", "(-\\infty,3]"),
    ("\\boxed{x \\le 3}", "(-\\infty,3]"),
    ("\\boxed{2 < x}", "x>2"),
    ("\\boxed{12,\\!345}", "12345"),
    ("\\boxed{4\\pi \\text{ square units}}", "4\\pi"),
    ("\\boxed{\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ("\\boxed{3½}", "3\\frac{1}{2}"),
    ("\\boxed{\\mathrm{e}^2}", "e^2"),
    ("\\boxed{\\varnothing}", "\\emptyset"),
    ("\\boxed{15\\frac{39}{40}} or \\boxed{\\frac{639}{40}}", "\\frac{639}{40}"),
    ("\\boxed{1 \\pm \\sqrt2}", "1+\\sqrt{2},1-\\sqrt{2}"),
    ("\\boxed{(x,y)=(1,2)}", "(1,2)"),
]

INCORRECT = [
    ("It is not 42.", "42"),
    ("So it is not \\(42\\).", "42"),
    ("\\boxed{(1,2)}", "\\{1,2\\}"),
    ("\\boxed{\\{1,2\\}}", "(1,2)"),
    ("\\boxed{5}", "\\{5\\}"),
    ("\\boxed{101_2}", "101_3"),
    ("\\boxed{101_{3}}", "101_{2}"),
    *[
        (form.format(text), "5")
        for form in ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "#### {}", "The answer is {}.")
        for text in (
            "5_6",
            "5_{6}",
            "5_{\\text{6}}",
            "$5_6$",
            "5\\_6",
            "5\u2086",
            "5 _6",
            "5_ 6",
            "5__6",
            "5_x",
            "5_{n}",
            "5_0",
            "5_000",
            "5_\\text{six}",
            "5_6_7",
            "(5_6)",
            "$5$_6",
            "x = 5_6",
        )
    ],
    ("\\boxed{12_8}", "12"),
    ("\\boxed{101_2}", "101"),
    ("The answer is 3, 4 or 5", "3"),
    ("3 or 4", "3"),
    ("It is 3, 4, or 5.", "5"),
    ("\\boxed{3 \\text{ or } 4}", "3"),
    ("\\boxed{3} or \\boxed{4}", "3"),
    ("\\boxed{1<x<3}", "[1,3]"),
    ("0.3333333", "\\frac{1}{3}"),
    ("\\boxed{.5}", "5"),
    ("\\boxed{5½}", "5"),
    ("\\boxed{5\\text{ million}}", "5"),
    ("5 thousand", "5"),
    ("The answer is not $5$", "5"),
    ("$5$ is wrong", "5"),
    ("\\boxed{\\text{not } 0}", "0"),
    ("\\boxed{1.41421356237}", "\\sqrt{2}"),
    ("\\boxed{3.14159265}", "\\pi"),
    ("\\boxed{3}", "x+y=3"),
    ("\\boxed{9} or \\boxed{\\text{Evelyn}}", "9"),
    ("\\boxed{x=5, y=6}", "5"),
    ("\\boxed{\\sqrt2, -\\sqrt2}", "\\sqrt{2}"),
    ("\\boxed{5} or 6", "5"),
    ("<answer>4</answer><answer>5</answer>", "5"),
    ("<think>\\boxed{5}", "5"),
    ("nothing", "5"),
    ("", "5"),
]


@pytest.mark.parametrize("completion, answer", CORRECT)
def test_correct(completion, answer):
    assert verifiers.verify("math", completion, answer, {}).status == "correct"


@pytest.mark.parametrize("completion, answer", INCORRECT)
def test_not_correct(completion, answer):
    assert verifiers.verify("math", completion, answer, {}).status in ("incorrect", "unparsable")


def test_a_marked_answer_without_end_is_not_parsed(monkeypatch):
    text = "\\boxed{" + "1+" * 5000 + "1}"
    monkeypatch.setattr(math, "read", lambda text, tight: pytest.fail("read"))
    assert math.verify(text, "42", {}).status == "unparsable" and math.extract_answer(text) == ""


def test_extraction_is_shared_by_equal_answers():
    texts = ["\\boxed{0.50}", "the answer is 0.5", "<answer>1/2</answer>"]
    assert set(verifiers.extract_answers([("math", t) for t in texts])) == {"0.5"}

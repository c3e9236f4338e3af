"""Two models decoded as one: against enumeration of every answer, and bit for bit against each model alone."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import toys

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import generator
from pipelines.engine.guided import Guided, with_base
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

CPU = torch.device("cpu")
GROUPS = [p for p in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14]) for _ in range(4)]
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0)


def two(family="llama", vocab=100):
    """A base, and the same after a change of its weights."""
    base, tuned = toys.model(family, vocab), toys.model(family, vocab)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in tuned.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return base, tuned


def drawn(model, prefixes=GROUPS, **options):
    sampler = TorchSampler(model, stop=[2], pad=0, **options)
    return [
        (c.tokens, c.logp, c.entropy)
        for c in sampler.extend(prefixes, Sampling(max_tokens=8), generator(CPU, 3), entropy=True)
    ]


@pytest.mark.parametrize("family", [*toys.FAMILIES, *toys.OTHERS])
def test_the_weights_0_and_1_have_the_bits_of_one_model(family):
    base, tuned = two(family)
    alone = drawn(base), drawn(tuned)
    assert alone[0] != alone[1]
    assert (drawn(Guided(tuned, base, 0.0)), drawn(Guided(tuned, base, 1.0))) == alone


@pytest.mark.parametrize("options", [{"fixed": True}, {"dtype": "bfloat16"}], ids=["fixed", "bfloat16"])
def test_so_they_do_in_the_other_ways_to_decode(options):
    base, tuned = two()
    assert drawn(Guided(tuned, base, 0.0), **options) == drawn(base, **options)
    assert drawn(Guided(tuned, base, 1.0), **options) == drawn(tuned, **options)


def log_probs(base, tuned, weight, prefix):
    """log p_base^(1-w) p_tuned^w / Z of the next token, float64 [V], without a cache."""
    with torch.no_grad():
        mixed = [m(torch.tensor([prefix])).logits[0, -1].double().log_softmax(-1) for m in (base, tuned)]
    return ((1 - weight) * mixed[0] + weight * mixed[1]).log_softmax(-1)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_answers_of_one_token_have_the_distribution_of_the_product(weight):
    base, tuned = two(vocab=3)
    expected = log_probs(base, tuned, weight, [1, 0, 1])
    count = 6000
    sampler = TorchSampler(Guided(tuned, base, weight), stop=[2], pad=0, rows=2000)
    answers = sampler.extend([[1, 0, 1]] * count, Sampling(max_tokens=1), generator(CPU, 1))
    for answer in answers[:50]:
        assert answer.logp[0] == pytest.approx(float(expected[answer.tokens[0]]), abs=1e-5)
    share = torch.bincount(torch.tensor([a.tokens[0] for a in answers]), minlength=3) / count
    deviation = (expected.exp() * (1 - expected.exp()) / count).sqrt()
    assert bool(((share - expected.exp()).abs() < 4 * deviation).all()), (share, expected.exp())


def test_the_log_probs_of_longer_answers_are_those_of_the_mixture_that_was_drawn():
    """Every answer of up to three tokens over three: 2 ends one, so there are 1 + 2 + 4 * 3 of them."""
    base, tuned = two(vocab=3)
    weight, prefix = 1.5, [1, 0, 1]
    table = {}
    for length in (1, 2, 3):
        for tokens in itertools.product(range(3), repeat=length):
            if 2 not in tokens[:-1] and (tokens[-1] == 2 or length == 3):
                steps = [float(log_probs(base, tuned, weight, [*prefix, *tokens[:i]])[t]) for i, t in enumerate(tokens)]
                table[tokens] = steps
    assert len(table) == 15 and sum(torch.tensor([sum(s) for s in table.values()]).exp()) == pytest.approx(1, abs=1e-5)
    answers = TorchSampler(Guided(tuned, base, weight), stop=[2], pad=0).extend(
        [prefix] * 400, Sampling(max_tokens=3), generator(CPU, 2)
    )
    for answer in answers:
        assert answer.logp == pytest.approx(table[tuple(answer.tokens)], abs=1e-5)
    assert len({tuple(a.tokens) for a in answers}) > 5


class Table(torch.nn.Module):
    """A language model that is a table: a distribution over answers of `length` tokens out of three, as its next-token logits."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.answers = answers
        text = SimpleNamespace(num_hidden_layers=0, vocab_size=3)
        self.config, self.generation_config = SimpleNamespace(get_text_config=lambda: text), None

    def forward(self, input_ids, past_key_values=None):
        """Of the token after each row's first one, which begins the answer: float [rows, 1, 3]."""
        rows = []
        for row in input_ids[:, 1:].tolist():
            logits = self.answers[tuple(row)]
            rows.append(logits.reshape(3, -1).logsumexp(1))
        return SimpleNamespace(logits=torch.stack(rows)[:, None])


def chained(model, length):
    """log-probability of every answer as the model's tokens make it, float64 [3] * length."""
    total = torch.zeros([3] * length, dtype=torch.float64)
    for answer in itertools.product(range(3), repeat=length):
        for i, token in enumerate(answer):
            total[answer] += model(torch.tensor([[0, *answer[:i]]])).logits[0, -1].double().log_softmax(-1)[token]
    return total


def trade_off(length, weight):
    """(KL of the mixture from the optimum in nats, mean reward of the mixture, of the optimum) for the KL coefficient 0.5 / weight.

    The reward of each answer is uniform in [0, 1], and the tuned model is the exact optimum for the coefficient 0.5.
    """
    torch.manual_seed(length)
    base = torch.randn([3] * length, dtype=torch.float64).flatten().log_softmax(0).reshape([3] * length)
    reward, coefficient = torch.rand([3] * length, dtype=torch.float64), 0.5

    def optimum(b):
        return (base + reward / b).flatten().log_softmax(0).reshape(base.shape)

    mixture = chained(Guided(Table(optimum(coefficient)), Table(base), weight), length)
    exact = base if weight == 0 else optimum(coefficient / weight)
    divergence = float((mixture.exp() * (mixture - exact)).sum())
    return divergence, float((mixture.exp() * reward).sum()), float((exact.exp() * reward).sum())


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_weight_divides_the_kl_coefficient_exactly_for_answers_of_one_token(weight):
    divergence, mean, best = trade_off(1, weight)
    assert abs(divergence) < 1e-6 and mean == pytest.approx(best, abs=1e-6)


def test_over_sequences_that_is_an_approximation():
    """Exact at the two ends, near between them, and further off beyond: a mean reward lower by 0.002 at 1.5 and by 0.007 at 2."""
    gaps = {weight: trade_off(4, weight) for weight in WEIGHTS}
    assert all(abs(gaps[w][0]) < 1e-6 for w in (0.0, 1.0))
    assert 1e-4 < gaps[0.5][0] < gaps[1.5][0] < gaps[2.0][0] < 0.1
    assert all(abs(mean - best) < 0.01 for _, mean, best in gaps.values())
    rewards = [gaps[w][1] for w in WEIGHTS]
    assert rewards == sorted(rewards), "more weight, more reward, as with a smaller coefficient"


def test_what_cannot_be_decoded_together_is_refused(tmp_path):
    base, tuned = toys.model(), toys.model(vocab=101)
    with pytest.raises(ModelError, match="vocabulary has 100 tokens, the guided model's 101"):
        Guided(tuned, base, 1.5)
    mixture = Guided(base, toys.model(), 1.5)
    with pytest.raises(ModelError, match="only transformers' own loop knows"):
        mixture.generate(torch.tensor([[5]]))
    with pytest.raises(ModelError, match="no single head"):
        Policy(mixture, Sampling())
    mine, other = (train_tokenizer("char", 128, [text]) for text in ("abcd", "dcbz"))
    model = toys.model(vocab=len(mine))
    save_model(model, other, tmp_path / "base", {"stage": "sft"})
    with pytest.raises(ModelError, match=r"sample\.guidance\.base: its tokenizer or chat template is another"):
        with_base(model, mine, str(tmp_path / "base"), 1.5, Model(path=str(tmp_path)), "sample.guidance.base")

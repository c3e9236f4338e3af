"""Representations of graphs: commute times of random walks, and the optimum of the objective that networks learn them by."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.laplacian import graph_laplacian, laplacian, representation

SEEDS = st.integers(0, 5_000)


def random_graph(seed, nodes):
    """A random tree with some edges more: it hangs together."""
    draw = torch.Generator().manual_seed(seed)
    edges = {(int(torch.randint(0, i, (1,), generator=draw)), i) for i in range(1, nodes)}
    more = torch.rand(nodes, nodes, generator=draw) < 0.2
    return sorted(edges | {(i, j) for i in range(nodes) for j in range(i + 1, nodes) if more[i, j]})


def hitting_times(edges, nodes, goal):
    """Turns that a random walk takes on average to the goal: h = 1 + P h, and 0 at the goal."""
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    for one, other in edges:
        adjacency[one, other] = adjacency[other, one] = 1.0
    others = [i for i in range(nodes) if i != goal]
    walk = (adjacency / adjacency.sum(1, keepdim=True))[others][:, others]
    times = torch.zeros(nodes, dtype=torch.float64)
    times[others] = torch.linalg.solve(torch.eye(nodes - 1, dtype=torch.float64) - walk, torch.ones(nodes - 1).double())
    return times


@given(SEEDS, st.integers(2, 8))
def test_squared_distances_are_commute_times(seed, nodes):
    edges = random_graph(seed, nodes)
    x = representation(graph_laplacian(nodes, edges), nodes)
    to = [hitting_times(edges, nodes, goal) for goal in range(nodes)]
    for one in range(nodes):
        for other in range(nodes):
            commute = to[other][one] + to[one][other]
            assert float((x[one] - x[other]).square().sum()) * 2 * len(edges) == pytest.approx(float(commute), abs=1e-6)


def test_a_path_by_hand():
    """0 - 1 - 2: two moves apart, 4 turns there and 4 back on average, which is 2 times 2 edges times 2."""
    x = representation(graph_laplacian(3, [(0, 1), (1, 2)]), 2)
    assert (x[0] - x[2]).square().sum().item() == pytest.approx(2.0)
    assert float(hitting_times([(0, 1), (1, 2)], 3, 2)[0]) == pytest.approx(4.0)


def test_without_the_scale_states_are_equally_far_from_the_goal():
    """All eigenvectors unscaled: any two nodes are the root of 2 apart, so nothing is known of the way."""
    part, plain = laplacian(dimensions=50), laplacian(dimensions=50, scaled=False)
    for each in (part, plain):
        each.graph.add([1, 2, 3, 4, 5], arrived=True)
    levels = part.potentials(range(1, 6))
    assert sorted(levels, key=levels.__getitem__) == [1, 2, 3, 4, 5]
    assert len({round(p, 9) for p in plain.potentials(range(1, 6)).values()}) == 1


def test_eigenvalues_that_are_equal_come_together():
    """A ring of 4 has 0, 2, 2, 4: one dimension would be an arbitrary one of two."""
    ring = graph_laplacian(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    assert [representation(ring, n).shape[1] for n in (1, 2, 3, 9)] == [2, 2, 3, 3]


def test_parts_have_goals_of_their_own():
    """Two maps that share no state: what is known of one changes nothing in the other."""
    part, alone = laplacian(), laplacian()
    part.graph.add([1, 2, 3], arrived=True)
    alone.graph.add([1, 2, 3], arrived=True)
    part.graph.add([7, 8], arrived=True)
    part.graph.add([11, 12], arrived=False)
    levels = part.potentials([1, 2, 3, 7, 8, 11, 12])
    assert {s: p for s, p in levels.items() if s < 4} == alone.potentials([1, 2, 3])
    assert set(levels) == {1, 2, 3, 7, 8}
    small = laplacian(largest=2)
    small.graph.load_state_dict(part.graph.state_dict())
    assert set(small.potentials([1, 7])) == {7}


@pytest.mark.parametrize(
    "edges", [[(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5), (0, 2)]]
)
def test_the_proper_laplacian_objective_has_the_exact_eigenvectors_for_its_optimum(edges):
    """ALLO (2310.10833): min over u, max over b of sum u_i'Lu_i + sum_{k<=j} b_jk (u_j'[u_k] - d_jk) + B (u_j'[u_k] - d_jk)^2.

    [.] stops the gradient. At the optimum u_i are the eigenvectors, in order, and -b_ii / 2 the eigenvalues.
    """
    nodes, count, barrier, rate = 1 + max(max(e) for e in edges), 4, 5.0, 0.02
    exact = graph_laplacian(nodes, edges)
    u = torch.randn(nodes, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / nodes**0.5
    duals = torch.zeros(count, count, dtype=torch.float64)
    for _ in range(4000):
        errors = (u.T @ u - torch.eye(count, dtype=torch.float64)).tril()
        u = u - rate * (2 * exact @ u + u @ (duals + 2 * barrier * errors).T)
        duals = duals + 10 * rate * errors
    values, vectors = torch.linalg.eigh(exact)
    torch.testing.assert_close(-duals.diagonal() / 2, values[:count], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close((vectors[:, :count].T @ u).abs(), torch.eye(count).double(), atol=1e-6, rtol=1e-6)
    learned = u[:, 1:] / (-duals.diagonal()[1:] / 2).sqrt()
    torch.testing.assert_close(
        torch.cdist(learned, learned), torch.cdist(*[representation(exact, count - 1)] * 2), atol=1e-5, rtol=1e-5
    )


def test_an_agent_is_paid(tmp_path, lake):
    more = ("presets=[laplacian]", "rlvr.rollout.max_turns=4", "rlvr.group_size=8", "rlvr.steps=2")
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *more)
    toys.few_near_goals(made)
    made.run()
    values = [values for _, values in toys.history(tmp_path / "work")]
    assert values[0]["reward/mean"] > 0 and values[0]["reward/shaped_mean"] == values[0]["reward/mean"]
    assert values[1]["reward/shaped_mean"] < values[1]["reward/mean"], (
        "where a way is known, its start is worth something"
    )

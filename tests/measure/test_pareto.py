"""A front holds exactly the points that nothing beats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.measure.compare.pareto import dominates, pareto_front

COSTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


@given(COSTS)
def test_every_other_point_is_beaten_by_one_of_the_front(costs: list[tuple[int, int]]) -> None:
    front = pareto_front(costs)
    best = [costs[index] for index in front]
    assert bool(front) == bool(costs)
    for index, point in enumerate(costs):
        beaten = any(dominates(other, point) for other in best)
        assert beaten == (index not in front)


def test_equal_points_stand_side_by_side() -> None:
    assert pareto_front([(1, 1), (1, 1), (1, 2), (0, 5)]) == [0, 1, 3]

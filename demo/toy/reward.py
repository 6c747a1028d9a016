"""The reward of the toy task; verl's reward worker loads this file by its path and calls `compute_score`.

verl loads it outside the package, so it imports nothing of ours.
"""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **_: object
) -> dict[str, float]:
    """Scores an answer between 0 and 1: 0.8 for the share of places that are right, 0.2 for an answer wholly right.

    The share is of the longer of the two strings, so an answer too long or too short loses. Repeating one digit gets a
    single place right at most: 0.2 for the shortest answers, less for all others.
    """
    answer = solution_str or ""
    right = sum(a == b for a, b in zip(answer, ground_truth, strict=False))
    share = right / max(len(answer), len(ground_truth), 1)
    exact = float(answer == ground_truth)
    return {"score": 0.8 * share + 0.2 * exact, "right_share": share, "exact": exact}

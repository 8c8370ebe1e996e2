"""The lines that `train`, `resume` and `eval` print about an evaluation."""

from typing import Any


def report(trained: Any) -> int:
    """Print the evaluation and the directory of a `runs.loop.Trained`; return the exit code."""
    if trained.signal is not None:
        return 128 + trained.signal
    evaluated = trained.evaluation is not None
    print(
        evaluation_line(trained.evaluation) if evaluated else "no evaluation (eval_episodes: 0)", trained.run, sep="\n"
    )
    return 0


def evaluation_line(evaluation: dict[str, Any]) -> str:
    """Return the scores of an evaluation, as `runs.scores.evaluate` makes it, in one line."""
    if not evaluation["episodes"]:
        return f"step {evaluation['step']}: no greedy episode ended"
    numbers = (evaluation["mean"], evaluation["iqm"], *evaluation["interval"])
    mean, center, low, high = ("not finite" if number is None else f"{number:.4g}" for number in numbers)
    return (
        f"step {evaluation['step']}: greedy return {mean}, IQM {center} "
        f"[{low}, {high}] over {len(evaluation['seeds'])} seed(s) and {evaluation['episodes']} episodes"
    )

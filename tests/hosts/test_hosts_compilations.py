"""Runs in environments outside of JAX compile before their first metric line, and never after it."""

import pytest
from compilations import compilations
from host_runs import DQN, PPO, lines

from rlkit.runs import loop

pytestmark = pytest.mark.thorough
RUNS = {
    "ppo": PPO | {"backend": "serial"},
    "dqn after every step": DQN | {"num_envs": 1, "num_steps": 1, "learning_starts": 4},
}


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_compiled_after_the_first_update(name, tmp_path):
    """Eight updates, and eight more with another learning rate, to the run's end."""
    batch = RUNS[name]["num_envs"] * RUNS[name]["num_steps"]
    sizes = {"total_steps": 16 * batch, "log_every": batch, "checkpoint_every": 4 * batch, "eval_episodes": 0}
    config = RUNS[name] | sizes | {"report": False}

    def count(run, *, stop=None, resume=None):
        """The programs that are compiled until the first metric line, and after it."""
        before = []
        with compilations() as names:

            def on_chunk(line, state):
                before.extend(names if not before else ())
                return line["step"] == stop

            if resume is None:
                loop.train(config, on_chunk, out=run, show=False)
            else:
                loop.resume(run, on_chunk, overrides=resume, env=config["env"], show=False)
        assert len([name for name in before if "update" in name]) == 1, before
        return names[len(before) :]

    assert count(tmp_path / "half", stop=8 * batch) == []
    assert count(tmp_path / "half", resume={"learning_rate": 1e-4}) == []
    assert [line["step"] for line in lines(tmp_path / "half")] == [batch * (k + 1) for k in range(16)]

"""The training of pgx's AlphaZero example in a process of its own, for run.py: `python pgx_worker.py CHECKOUT`.

The protocol is that of worker.py. An iteration is the example's own: its functions `selfplay`, `compute_loss_input` and
`train`, on a permutation of the samples, without the evaluation against a baseline, whose parameters it would download.
"""

import sys
import time
import types
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve
from worker import GAME, PACKAGES, Game


class Trainer:
    """Runs iterations of the example on one device."""

    def __init__(self, folder: Path):
        self.folder = folder / "examples/alphazero"

    def compile(self, case: str, updates: int) -> dict[str, float]:
        """Make the model, and compile by a first iteration."""
        game: Game = GAME[case]
        sys.path.insert(0, str(self.folder))
        sys.modules["wandb"] = types.ModuleType("wandb")
        import pgx

        pgx.make_baseline_model = lambda *arguments: None
        settings = {
            "env_id": game.env, "num_channels": game.channels, "num_layers": game.blocks,
            "selfplay_batch_size": game.num_envs, "num_simulations": game.num_simulations,
            "max_num_steps": game.num_steps, "training_batch_size": game.batch, "learning_rate": game.learning_rate,
        }  # fmt: skip
        sys.argv[1:] = [f"{name}={value}" for name, value in settings.items()]  # as the example reads its settings
        import jax
        import train

        self.train, self.updates, self.game = train, updates, game
        keys = jax.random.split(jax.random.PRNGKey(0), 2)
        model = train.forward.init(keys[0], jax.vmap(train.env.init)(keys).observation)
        self.state = jax.tree.map(lambda x: x[None], (model, train.optimizer.init(model[0])))  # for one device
        begin = time.perf_counter()
        self._iteration(jax.random.PRNGKey(1))
        return {"seconds": time.perf_counter() - begin}

    def _iteration(self, key: Any) -> None:
        import jax

        play_key, order_key = jax.random.split(key)
        model, opt_state = self.state
        samples = self.train.compute_loss_input(self.train.selfplay(model, play_key[None]))
        samples = jax.device_get(samples)
        samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), samples)
        order = jax.random.permutation(order_key, len(samples.obs)).reshape(-1, self.game.batch)
        for rows in jax.device_get(order):
            minibatch = jax.tree.map(lambda x, rows=rows: x[rows][None], samples)
            model, opt_state, _, _ = self.train.train(model, opt_state, minibatch)
        self.state = jax.block_until_ready((model, opt_state))

    def run(self, seed: int) -> dict[str, float]:
        """Run iterations."""
        import jax

        begin = time.perf_counter()
        for key in jax.random.split(jax.random.PRNGKey(seed), self.updates):
            self._iteration(key)
        steps = self.updates * self.game.num_envs * self.game.num_steps
        return {"seconds": time.perf_counter() - begin, "steps": steps, "return": None}


if __name__ == "__main__":
    serve(Trainer(Path(sys.argv[1])), PACKAGES)

"""IPPO of one library in a process of its own, for run.py: `python worker.py rlkit|jaxmarl [CHECKOUT]`.

The protocol is that of `workers.serve`: {"compile": [case, updates]} and {"run": [seed]} return their seconds, and a
run also the steps of worlds of its program, and the mean return of a player over the last tenth of the updates.
JaxMARL's training is that of its own script, from a checkout of its repository: the scripts are not in its package.
"""

import importlib.util
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve

PACKAGES = ("rlkit-jax", "jaxmarl", "distrax", "pgx", "mctx", "dm-haiku", "jax", "jaxlib", "flax", "optax", "numpy")


class Case(NamedTuple):
    """An environment with the settings of JaxMARL's script for it."""

    script: str
    env: str
    kwargs: dict[str, Any]
    num_worlds: int
    num_players: int
    learning_rate: float
    clip_eps: float
    max_grad_norm: float
    recurrent: bool = False


NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 128, 4, 4
SMAX = {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"}
CASES = {
    "simple_spread": Case("ippo_ff_mpe", "MPE_simple_spread_v3", {}, 16, 3, 2.5e-4, 0.2, 0.5),
    "smax_3m": Case("ippo_rnn_smax", "HeuristicEnemySMAX", SMAX, 128, 3, 4e-3, 0.05, 0.25, recurrent=True),
}


class Game(NamedTuple):
    """A game for AlphaZero: both searches and networks have the same size."""

    env: str = "connect_four"
    num_envs: int = 128
    num_steps: int = 32
    num_simulations: int = 32
    channels: int = 32
    blocks: int = 2
    batch: int = 256
    learning_rate: float = 1e-3


GAME = {"connect_four": Game()}


def smax_network() -> Any:
    """The network of JaxMARL's recurrent script: a dense layer, a GRU, and a hidden layer in each head."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from rlkit.types import Network

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return nn.relu(nn.Dense(128, kernel_init=nn.initializers.orthogonal(2**0.5))(obs["obs"]))

    class Heads(nn.Module):
        @nn.compact
        def __call__(self, x):
            def head(size, scale):
                hidden = nn.relu(nn.Dense(128, kernel_init=nn.initializers.orthogonal(2.0))(x))
                return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))(hidden)

            return head(8, 0.01), head(1, 1.0)[..., 0]

    encoder, core, heads = Encoder(), nn.GRUCell(128), Heads()
    memory = jnp.zeros(128)

    def init(key, obs, memory):
        keys = jax.random.split(key, 3)
        params = {"encoder": encoder.init(keys[0], obs)}
        x = encoder.apply(params["encoder"], obs)
        return params | {"core": core.init(keys[1], memory, x), "heads": heads.init(keys[2], x)}, ()

    def encode(params, stats, obs, train=False, key=None):
        return encoder.apply(params["encoder"], obs), stats

    def advance(params, stats, memory, x):
        return core.apply(params["core"], memory, x)

    def decode(params, stats, y, train=False, key=None):
        return heads.apply(params["heads"], y), stats

    def apply(params, stats, obs, memory, train=False, key=None):
        x, _ = encode(params, stats, obs)
        memory, y = advance(params, stats, memory, x)
        return (*decode(params, stats, y)[0], memory), stats

    return Network(init, apply, memory, (encode, advance, decode))


def rlkit(case: Case, updates: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    import jax

    from rlkit import envs, training
    from rlkit.agents import ppo

    kwargs = {**case.kwargs, "limit_terminates": True, **({"scenario": "3m"} if case.recurrent else {})}
    env, params = envs.make(f"jaxmarl:{case.env}", **kwargs)
    num_envs = case.num_worlds * case.num_players
    config = ppo.Config(
        hidden_sizes=(64, 64), activation="tanh", num_epochs=NUM_EPOCHS, num_minibatches=NUM_MINIBATCHES,
        learning_rate_schedule="linear",
    )  # fmt: skip
    hyper = ppo.Hyper(
        learning_rate=case.learning_rate, gamma=0.99, gae_lambda=0.95, clip_eps=case.clip_eps,
        vf_clip_eps=case.clip_eps, vf_coef=0.5, ent_coef=0.01, max_grad_norm=case.max_grad_norm,
    )  # fmt: skip
    networks = smax_network() if case.recurrent else None
    agent = ppo.make(config, env.observation_space(params), env.action_space(params), networks)
    steps = updates * num_envs * NUM_STEPS
    run = training.make(agent, env, params, num_envs=num_envs, num_steps=NUM_STEPS, total_steps=steps)

    def train(key):
        def update(state, _):
            state, metrics = run.step(state)
            return state, {name: x for name, x in metrics.items() if x.ndim == 0}

        return jax.lax.scan(update, run.init(hyper, key), None, updates)

    return train, lambda out: out[1]["episode_return"]


def alphazero(game: Game, updates: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    import jax

    from rlkit import envs, training
    from rlkit.agents import alphazero

    env, params = envs.make(f"pgx:{game.env}", opponent="none")
    config = alphazero.Config(
        encoder="resnet", channels=(game.channels,) * game.blocks, hidden_sizes=(64,), activation="relu",
        num_simulations=game.num_simulations, num_minibatches=game.num_envs * game.num_steps // game.batch,
    )  # fmt: skip
    spaces = env.observation_space(params), env.action_space(params)
    agent = alphazero.make(config, *spaces, model=env.game_model(params))
    run = training.make(agent, env, params, num_envs=game.num_envs, num_steps=game.num_steps)
    hyper = alphazero.Hyper(learning_rate=game.learning_rate)

    def train(key):
        def update(state, _):
            state, metrics = run.step(state)
            return state, {name: x for name, x in metrics.items() if x.ndim == 0}

        return jax.lax.scan(update, run.init(hyper, key), None, updates)

    return train, lambda out: None  # what one side of a game wins the other loses


def jaxmarl(case: Case, updates: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    import yaml

    wandb = types.ModuleType("wandb")  # to which the script reports each update
    logged: list[dict[str, Any]] = []
    wandb.log = logged.append
    sys.modules["wandb"] = wandb
    folder = Path(sys.argv[2]) / "baselines/IPPO"
    spec = importlib.util.spec_from_file_location(case.script, folder / f"{case.script}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    config = yaml.safe_load((folder / f"config/{case.script}.yaml").read_text())
    config |= {"TOTAL_TIMESTEPS": updates * case.num_worlds * NUM_STEPS, "LR": case.learning_rate}
    config |= {"MAP_NAME": "3m"} if case.recurrent else {}
    expected = {
        "NUM_ENVS": case.num_worlds, "NUM_STEPS": NUM_STEPS, "UPDATE_EPOCHS": NUM_EPOCHS, "CLIP_EPS": case.clip_eps,
        "NUM_MINIBATCHES": NUM_MINIBATCHES, "ENT_COEF": 0.01, "MAX_GRAD_NORM": case.max_grad_norm, "GAMMA": 0.99,
    }  # fmt: skip
    assert {name: config[name] for name in expected} == expected, "the script's settings are others"
    # MPE's log multiplies returns by the number of agents.
    name, scale = ("returns", 1.0) if case.recurrent else ("returned_episode_returns", 1.0 / case.num_players)
    return script.make_train(config), lambda out: [scale * float(line[name]) for line in logged]


class Trainer:
    """Compiles and runs the trainings of one library; the last compiled one is kept."""

    def __init__(self, library: Callable):
        self.library = library

    def compile(self, case: str, updates: int) -> dict[str, float]:
        """Trace, lower and compile a whole run."""
        import jax

        self.case, self.updates = (CASES | GAME)[case], updates
        library = alphazero if case in GAME else self.library
        train, self.returns = library(self.case, updates)
        begin = time.perf_counter()
        self.compiled = jax.jit(train).lower(self._key(0)).compile()
        return {"seconds": time.perf_counter() - begin}

    def _key(self, seed: int) -> Any:
        import jax

        return jax.random.key(seed) if self.library is rlkit else jax.random.PRNGKey(seed)

    def run(self, seed: int) -> dict[str, float]:
        """Run the compiled program."""
        import jax
        import numpy as np

        key = jax.block_until_ready(self._key(seed))
        begin = time.perf_counter()
        out = jax.block_until_ready(self.compiled(key))
        seconds = time.perf_counter() - begin
        jax.effects_barrier()
        game, returns = isinstance(self.case, Game), self.returns(out)
        of_update = self.case.num_envs * self.case.num_steps if game else self.case.num_worlds * NUM_STEPS
        last = None if returns is None else returns[-max(1, self.updates // 10) :]
        mean = None if last is None else float(np.mean(last))
        return {"seconds": seconds, "steps": self.updates * of_update, "return": mean}


def main() -> None:
    serve(Trainer({"rlkit": rlkit, "jaxmarl": jaxmarl}[sys.argv[1]]), PACKAGES)


if __name__ == "__main__":
    main()

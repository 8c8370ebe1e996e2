"""Fields of Hyper that change nothing with the other settings, against the jaxprs of updates."""

import jax
import optax
import pytest
from agent_examples import EXAMPLES
from jax.interpreters import partial_eval
from models import model_of

from rlkit import agents, envs, replay, training
from rlkit.agents.base.keys import StartOnly, marked
from rlkit.runs.config.parse import parse
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
SMALL = {"hidden_sizes": (4,), "num_minibatches": 2, "memory_size": 4, "capacity": 128, "batch_size": 8}
SMALL |= {"learning_starts": 0, "replay_ratio": 0.125}
MORE = (  # settings that the examples lack
    ("dqn", "Probe-ObservationAction", {"optimizer": "sgd"}),
    ("ppo", "Probe-ObservationAction", {"kl_penalty": True, "clip_schedule": "linear"}),
    *(("sac", "Probe-Continuous", own) for own in ({"optimizer": optax.adam(1e-3)}, {"optimizer": optax.adam})),
    ("sac", "Probe-Continuous", {"learning_rate_schedule": optax.constant_schedule(1e-3)}),
    ("dqn", "Probe-ObservationAction", {"replay": lambda config: replay.prioritized(64, 8)}),
)
RUNS = [(name, *example) for name in agents.names() for example in EXAMPLES[name]]
FEW = [(name, *EXAMPLES[name][0]) for name in ("dqn", "iql", "ppo", "sac")]


def a_config(name, env_name, settings, **values):
    fields = agents.get(name).Config.model_fields
    small = {key: value for key, value in SMALL.items() if key in fields and key not in settings}
    run = {"agent": name, "env": env_name, "num_envs": 4, "num_steps": 8, "total_steps": 320}
    return parse(run | small | settings | values)


def fields_without_readers(config):
    """Fields of Hyper on which nothing but themselves depends after a step, of those that are set."""
    module, (env, params) = agents.get(config.run.agent), envs.make(config.run.env)
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(config.agent, *spaces, **model_of(module, spaces[0], env, params))
    run = training.make(agent, env, params, num_envs=4, num_steps=8)
    state = jax.eval_shape(lambda key: run.init(module.Hyper(**config.hyper), key), jax.random.key(0))
    unset = {key: None for key, value in config.hyper.items() if value is None}
    state = state.replace(agent=state.agent.replace(hyper=state.agent.hyper.replace(**unset)))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    jaxpr = jax.make_jaxpr(lambda state: run.step(state)[0])(state).jaxpr
    of_hyper = [path.startswith(".agent.hyper.") for path in paths]
    _, read = partial_eval.dce_jaxpr(jaxpr, [not own for own in of_hyper])
    return {path.rpartition(".")[2] for path, own, is_read in zip(paths, of_hyper, read, strict=True) if own > is_read}


def is_refused(config, key):
    """True where another value of a field is refused already."""
    try:
        config.agent.check_hyper({**config.hyper, key: 0.5})
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "env_name", "settings"),
    [*(pytest.param(*run, marks=() if run in FEW else pytest.mark.slow) for run in RUNS), *MORE],
)
def test_the_unused_fields_are_those_that_no_update_reads(name, env_name, settings):
    config = a_config(name, env_name, settings)
    env, params = envs.make(env_name)
    found, without_readers = config.unused(env.action_space(params)), fields_without_readers(config)
    unused = {key for key in found if key in config.hyper}
    # What a traced value switches off is still in the program.
    static = {key for key in unused if found[key].partition("=")[0] not in config.hyper}
    assert {key for key in static if config.hyper[key] is not None} <= without_readers
    declared = {*unused, *marked(agents.get(name).Hyper, StartOnly)}
    assert all(is_refused(config, key) for key in without_readers - declared), without_readers - declared

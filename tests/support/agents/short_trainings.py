"""A short training of an agent in one program, and the returns that it then reaches."""

import jax

from rlkit import training


def trained(module, config, hyper, env, updates, *, networks=None, num_envs=8, num_steps=8):
    """-> the agent of a config in `env`, which is an environment with its parameters, and its state after updates."""
    env, params = env
    agent = module.make(config, env.observation_space(params), env.action_space(params), networks)
    pair = training.make(agent, env, params, num_envs=num_envs, num_steps=num_steps)

    @jax.jit
    def run(key):
        return jax.lax.scan(lambda state, _: (pair.step(state)[0], None), pair.init(hyper, key), None, updates)[0]

    return agent, run(jax.random.key(0)).agent


def mean_return(agent, state, env, max_steps=8):
    def run(actor, key):
        return training.evaluate(agent, *env, actor, key, num_envs=64, max_steps=max_steps).returns.mean()

    return jax.jit(run)(agent.actor(state), jax.random.key(0))

"""SAC and TD3 in plain JAX and optax, without any option, to compare rlkit's gradient steps with; see update.py.

Two layers of relu, two critics one after the other, Adam on each leaf, uniform sampling from arrays [capacity, ...].
"""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

GAMMA, TAU, LEARNING_RATE, HIDDEN = 0.99, 0.005, 3e-4, 256
ADAM = optax.adam(LEARNING_RATE)


def _mlp(key: Any, sizes: tuple[int, ...]) -> list[tuple[Any, Any]]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, (m, n) in zip(keys, itertools.pairwise(sizes), strict=True)
    ]


def _apply(layers: list[tuple[Any, Any]], x: Any) -> Any:
    for kernel, bias in layers[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = layers[-1]
    return x @ kernel + bias


def _critics(params: list[Any], obs: Any, action: Any) -> Any:
    x = jnp.concatenate([obs, action], axis=-1)
    return jnp.stack([_apply(critic, x)[:, 0] for critic in params])


def _soft_update(target: Any, params: Any) -> Any:
    return jax.tree.map(lambda old, new: old + TAU * (new - old), target, params)


def sac_init(key: Any, obs_size: int, action_size: int) -> dict[str, Any]:
    keys = jax.random.split(key, 3)
    critics = [_mlp(k, (obs_size + action_size, HIDDEN, HIDDEN, 1)) for k in keys[:2]]
    policy = _mlp(keys[2], (obs_size, HIDDEN, HIDDEN, 2 * action_size))
    params = {"critics": critics, "policy": policy, "temperature": jnp.zeros(())}
    optimizers = {name: ADAM.init(part) for name, part in params.items()}
    return {"params": params, "target": critics, "optimizers": optimizers}


def _sample(policy: Any, obs: Any, key: Any) -> tuple[Any, Any]:
    mean, log_std = jnp.split(_apply(policy, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -20.0, 2.0)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_prob -= 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), log_prob.sum(-1)


def sac_step(state: dict[str, Any], batch: tuple[Any, ...], key: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    obs, action, reward, terminated, next_obs = batch
    params = state["params"]
    next_key, key = jax.random.split(key)
    temperature = jnp.exp(params["temperature"])
    next_action, next_log_prob = _sample(params["policy"], next_obs, next_key)
    next_q = _critics(state["target"], next_obs, next_action).min(0) - temperature * next_log_prob
    target = reward + GAMMA * jnp.where(terminated, 0.0, next_q)

    def critic_loss(critics: Any) -> Any:
        return 0.5 * jnp.sum(jnp.mean((_critics(critics, obs, action) - target) ** 2, axis=1))

    def policy_loss(policy: Any) -> tuple[Any, Any]:
        action, log_prob = _sample(policy, obs, key)
        q = _critics(params["critics"], obs, action).min(0)
        return jnp.mean(temperature * log_prob - q), log_prob.mean()

    value, critic_grads = jax.value_and_grad(critic_loss)(params["critics"])
    (policy_value, log_prob), policy_grads = jax.value_and_grad(policy_loss, has_aux=True)(params["policy"])
    temperature_grad = -(log_prob - action.shape[-1])
    grads = {"critics": critic_grads, "policy": policy_grads, "temperature": temperature_grad}
    params, optimizers = _adam(params, state["optimizers"], grads)
    new = {"params": params, "target": _soft_update(state["target"], params["critics"]), "optimizers": optimizers}
    return new, {"critic_loss": value, "policy_loss": policy_value}


def td3_init(key: Any, obs_size: int, action_size: int) -> dict[str, Any]:
    keys = jax.random.split(key, 3)
    critics = [_mlp(k, (obs_size + action_size, HIDDEN, HIDDEN, 1)) for k in keys[:2]]
    params = {"critics": critics, "policy": _mlp(keys[2], (obs_size, HIDDEN, HIDDEN, action_size))}
    optimizers = {name: ADAM.init(part) for name, part in params.items()}
    return {"params": params, "target": params, "optimizers": optimizers, "count": jnp.zeros((), jnp.int32)}


def td3_step(state: dict[str, Any], batch: tuple[Any, ...], key: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    obs, action, reward, terminated, next_obs = batch
    params, targets, optimizers = state["params"], state["target"], state["optimizers"]
    noise = jnp.clip(0.2 * jax.random.normal(key, action.shape), -0.5, 0.5)
    next_action = jnp.clip(jnp.tanh(_apply(targets["policy"], next_obs)) + noise, -1.0, 1.0)
    next_q = _critics(targets["critics"], next_obs, next_action).min(0)
    target = reward + GAMMA * jnp.where(terminated, 0.0, next_q)

    def critic_loss(critics: Any) -> Any:
        return 0.5 * jnp.sum(jnp.mean((_critics(critics, obs, action) - target) ** 2, axis=1))

    value, grads = jax.value_and_grad(critic_loss)(params["critics"])
    critics, critics_opt = _adam(params["critics"], optimizers["critics"], grads)

    def policy_step(policy: Any, opt: Any, targets: Any) -> tuple[Any, Any, Any]:
        def loss(policy: Any) -> Any:
            return -_critics(critics, obs, jnp.tanh(_apply(policy, obs)))[0].mean()

        policy, opt = _adam(policy, opt, jax.grad(loss)(policy))
        return policy, opt, _soft_update(targets, {"policy": policy, "critics": critics})

    policy, policy_opt, targets = jax.lax.cond(
        state["count"] % 2 == 1, policy_step, lambda *same: same, params["policy"], optimizers["policy"], targets
    )
    new = {
        "params": {"policy": policy, "critics": critics},
        "target": targets,
        "optimizers": {"policy": policy_opt, "critics": critics_opt},
        "count": state["count"] + 1,
    }
    return new, {"critic_loss": value}


def _adam(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    if isinstance(params, dict) and set(state) == set(params):  # a part each
        parts = {name: _adam_part(params[name], state[name], grads[name]) for name in params}
        return {name: part[0] for name, part in parts.items()}, {name: part[1] for name, part in parts.items()}
    return _adam_part(params, state, grads)


def _adam_part(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    updates, state = ADAM.update(grads, state)
    return optax.apply_updates(params, updates), state


AGENTS = {"sac": (sac_init, sac_step), "td3": (td3_init, td3_step)}


def make(agent: str, data: tuple[Any, ...], batch_size: int, count: int) -> tuple[Any, Any]:
    """Functions (key -> state) and (state, key -> state, metrics) of `count` gradient steps on samples of `data`."""
    start, step = AGENTS[agent]
    capacity = data[0].shape[0]

    @partial(jax.jit, donate_argnums=0)
    def run(state: Any, key: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            sample_key, key = jax.random.split(key)
            index = jax.random.randint(sample_key, (batch_size,), 0, capacity)
            return step(state, jax.tree.map(lambda x: x[index], data), key)

        return jax.lax.scan(one, state, jax.random.split(key, count))

    return jax.jit(lambda key: start(key, data[0].shape[1], data[1].shape[1])), run

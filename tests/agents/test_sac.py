"""rlkit.agents.sac: the target entropy, the temperature, how it acts, and what it learns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import BOX, MASKED, OBS, SMALL, B, example, hand_made, make, shares
from short_trainings import mean_return, trained

from rlkit import envs
from rlkit.agents import crossq, sac, tqc
from rlkit.agents.common import q_critics
from rlkit.agents.common.off_policy import Schedules
from rlkit.spaces import Box, Discrete
from rlkit.types import ConfigError, Sample, Transition


@pytest.mark.parametrize(("obs_space", "space", "obs", "expected"), [
    (OBS, Box(-1, 1, (6,)), np.zeros(3), -6.0),
    (OBS, Box(-5, 5, (2, 3)), np.zeros(3), -6.0),
    (OBS, Discrete(4), np.zeros(3), 0.7 * np.log(4)),
    (MASKED, Discrete(4), {"action_mask": np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 0], [0] * 4])},
     0.7 * np.log([4, 2, 1, 1])),
])  # fmt: skip
def test_target_entropy(obs_space, space, obs, expected):
    agent = sac.make(sac.Config(**SMALL), obs_space, space)
    found = sac.target_entropy(agent.static, jax.tree.map(jnp.float32, sac.Hyper()), obs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.all((found >= 0) & (found < np.log(4))) or isinstance(space, Box)


def test_an_absolute_target_entropy_replaces_the_others():
    hyper = jax.tree.map(jnp.float32, sac.Hyper(target_entropy_total=-2.5))
    for space in (BOX, Discrete(4)):
        agent = sac.make(sac.Config(**SMALL), OBS, space)
        np.testing.assert_allclose(sac.target_entropy(agent.static, hyper, np.zeros(3)), -2.5)


def sample_of(batch):
    item = Transition(batch.obs, batch.action, batch.reward, batch.discount == 0, batch.discount < 0, batch.next_obs)
    return Sample(item, (), jnp.asarray(batch.weight), np.ones(B, bool))


def test_the_parts_have_learning_rates_and_clip_norms_of_their_own():
    """The first step of Adam moves each parameter by the learning rate, unless its gradient is tiny."""
    _, static, state = make()
    step, sample = jax.jit(partial(sac.gradient_step, static)), sample_of(hand_made())
    rates = {"actor_learning_rate": 0.02, "critic_learning_rate": 0.03, "temperature_learning_rate": 0.04}
    schedules = Schedules(jnp.float32(1e-3), jnp.array(True), jax.tree.map(jnp.float32, rates))

    def moved(**hyper):
        """The distances that the parts of the parameters move in one gradient step, by name."""
        hyper = state.hyper.replace(**{name: jnp.float32(value) for name, value in hyper.items()})
        after, *_ = step(state.replace(hyper=hyper), sample, schedules, jax.random.key(0))
        distances = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b)).max(), after.params, state.params)
        return {name: max(jax.tree.leaves(part)) for name, part in distances.items()}

    apart = moved()
    for name, expected in {"policy": 0.02, "critics": 0.03, "log_temperature": 0.04}.items():
        np.testing.assert_allclose(apart[name], expected, rtol=0.01)
    for clipped, group in (("policy", "actor"), ("critics", "critic")):
        bounded = moved(**{f"{group}_max_grad_norm": 1e-12})
        assert bounded[clipped] < 1e-5
        for name in {"policy", "critics", "log_temperature"} - {clipped}:
            np.testing.assert_allclose(bounded[name], apart[name], rtol=1e-5)


def test_the_policy_and_the_temperature_are_updated_at_every_kth_step():
    _, static, state = make(policy_every=3)
    sample, schedules = sample_of(hand_made()), Schedules(jnp.float32(1e-3), jnp.array(True))

    @jax.jit
    def run(state):
        def step(state, key):
            state, _, metrics = sac.gradient_step(static, state, sample, schedules, key)
            return state, (state, metrics["entropy"])

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 7))[1]

    after, entropy = run(state)
    for of in (lambda state: state.params, lambda state: state.opt_state):
        for name in ("policy", "log_temperature", "critics"):
            every = jax.tree.map(lambda x, xs: np.concatenate([[x], xs]), of(state)[name], of(after)[name])
            moved = [np.abs(np.diff(x, axis=0)).reshape(7, -1).max(-1) > 0 for x in jax.tree.leaves(every)]
            turns = [True] * 7 if name == "critics" else [False, False, True, False, False, True, False]
            np.testing.assert_array_equal(np.any(moved, axis=0), turns, name)
    assert len(set(np.asarray(entropy).tolist())) == 3  # 0 before the first step, and then that of the last one


def test_gsde_begins_within_the_bounds():
    """A fresh policy explores a unit box: at a log deviation of 0 a tenth of its actions and more lie at a bound."""
    space, obs, keys = Box(-1, 1, (2,)), jax.random.normal(jax.random.key(1), (500, 3)), jax.random.key(2)
    agent = sac.make(sac.Config(gsde=True, capacity=32, batch_size=4), OBS, space)
    actor = agent.actor(jax.jit(lambda key: agent.init(sac.Hyper(), key, example(OBS, space), 4))(keys))
    act = jax.jit(jax.vmap(lambda obs, key: agent.act(actor, agent.memory, obs, key)[1]))
    actions = np.asarray(act(obs, jax.random.split(keys, 500)))
    assert np.mean(np.abs(actions) > 0.99) < 0.02
    assert actions.std() > 0.05
    assert sac.Config().initial_log_std == 0.0
    assert sac.Config(gsde=True, log_std_init=-1.5).initial_log_std == -1.5


@pytest.mark.parametrize(("box", "learn"), [
    (True, True),
    pytest.param(False, True, marks=pytest.mark.slow),
    (False, False),
])  # fmt: skip
def test_the_temperature_rises_while_the_entropy_is_below_its_target(box, learn):
    hyper = {"learning_rate": 0.01, "temperature": 0.5}
    _, static, state = make(OBS, BOX if box else Discrete(4), hyper, learn_temperature=learn)
    step, sample = jax.jit(partial(sac.gradient_step, static)), sample_of(hand_made(box=box))
    _, _, metrics = step(state, sample, Schedules(jnp.float32(0.01), jnp.array(True)), jax.random.key(0))
    for below in (True, False):
        aim = metrics["entropy"] + (0.1 if below else -0.1)
        name, unit = ("target_entropy", 2) if box else ("target_entropy_share", np.float32(np.log(4)))
        led = state.replace(hyper=state.hyper.replace(**{name: aim / unit}))
        after, *_ = step(led, sample, Schedules(jnp.float32(0.01), jnp.array(True)), jax.random.key(0))
        moved = float(after.params["log_temperature"] - state.params["log_temperature"])
        np.testing.assert_allclose(moved, (0.01 if below else -0.01) * learn, rtol=1e-3)


def test_actions_of_unequal_bounds():
    """Critics see [-1, 1]; the environment its own bounds, which the policy keeps, and reaches."""
    agent, static, state = make(log_std_init=1.0)
    unit = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    taken = jax.jit(jax.vmap(partial(q_critics.denormalize_action, static.networks)))(unit)
    np.testing.assert_allclose(taken, np.stack([unit[:, 0] * 2, unit[:, 1] * 5 + 5], -1), rtol=1e-5)
    np.testing.assert_allclose(q_critics.normalize_action(static.networks, taken), unit, atol=1e-6)
    keys, obs = jax.random.split(jax.random.key(0), 2000), jnp.ones(3)
    sample, mode = (jax.jit(jax.vmap(f, (None, None, None, 0))) for f in (agent.act, agent.policy))
    actions = sample(agent.actor(state), (), obs, keys)[1]
    assert (actions >= BOX.low.reshape(1, 2)).all()
    assert (actions <= BOX.high.reshape(1, 2)).all()
    assert (np.ptp(actions, axis=0) > 0.9 * (BOX.high - BOX.low)).all()
    loc = static.networks.policy.apply(state.params["policy"], (), obs)[0][0]
    np.testing.assert_allclose(
        mode(agent.actor(state), (), obs, keys[:1])[1][0],
        q_critics.denormalize_action(static.networks, jnp.tanh(loc)),
        rtol=1e-6,
    )


def test_actions_are_uniform_until_learning_starts():
    agent, _, state = make(learning_starts=100)
    before, after = shares(agent, state, (99, 100))
    np.testing.assert_allclose(before, 0.25, atol=0.03)
    assert np.abs(after - 0.25).max() > 0.1


def test_gsde_holds_its_noise():
    """With the same noise an action is a function of the observation; it is drawn anew every `gsde_steps`."""
    agent, _, state = make(gsde=True, gsde_steps=3)
    act, memory, obs = jax.jit(agent.act), agent.memory, jnp.ones(3)
    actions = []
    for key in jax.random.split(jax.random.key(0), 7):
        memory, action, _ = act(agent.actor(state), memory, obs, key)
        actions.append(tuple(np.asarray(action).tolist()))
    assert [len(set(actions[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert len(set(actions)) == 3


@pytest.mark.parametrize(("module", "env_name", "best", "settings"), [
    (sac, "Probe-Continuous", 0.99, {}),
    pytest.param(sac, "Probe-MaskedAction", 1.0, {"n_step": 2}, marks=pytest.mark.thorough),
    pytest.param(sac, "Probe-ObservationAction", 1.0, {"replay": "prioritized"}, marks=pytest.mark.thorough),
    pytest.param(tqc, "Probe-Continuous", 0.99, {"replay": "prioritized"}, marks=pytest.mark.slow),
    pytest.param(crossq, "Probe-Continuous", 0.99, {"critic_hidden_sizes": (32,)}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_best_policy_is_found(module, env_name, best, settings):
    many = {"hidden_sizes": (32,), "capacity": 4096, "batch_size": 64, "learning_starts": 256}
    config = module.Config(**(SMALL | many | settings))
    hyper = module.Hyper(learning_rate=5e-3, tau=0.05, gamma=0.8, temperature=0.2)
    agent, state = trained(module, config, hyper, envs.make(env_name), 100)
    assert mean_return(agent, state, envs.make(env_name)) >= best


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        (Box(np.array([0.0, 2.0]), np.array([1.0, 1.0])), {}, "must have low <= high in each dimension; swap"),
        (Discrete(2), {"gsde": True}, "gsde=True needs a Box action space with finite bounds"),
        (BOX, {"target_subset": 3}, "target_subset=3 must be at most num_critics=2"),
        (BOX, {"gsde": True, "hidden_sizes": ()}, "gsde=True needs a hidden layer"),
    ],
)
def test_spaces_that_do_not_fit(space, settings, words):
    with pytest.raises(ConfigError, match=words):
        sac.make(sac.Config(**(SMALL | settings)), OBS, space)

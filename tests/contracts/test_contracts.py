"""Contracts of every agent on small environments: purity, stable types, vmap, donation, one compilation.

The cases are the `EXAMPLES` of each agent. Four programs are compiled for each.
"""

import re
from functools import partial
from operator import attrgetter

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_examples import EXAMPLES
from models import model_of

from rlkit import agents, envs, training
from rlkit.replay import packing

SMALL = {  # of the fields that an agent's Config has
    "hidden_sizes": (8,),
    "num_minibatches": 2,
    "memory_size": 4,
    "capacity": 128,
    "batch_size": 8,
    "learning_starts": 0,
    "replay_ratio": 0.125,
}
NUM_ENVS, NUM_STEPS, SEEDS = 4, 8, 10
# fields of states that learning changes and that no other run starts with
START_ANEW = {"opt_state", "replay", "normalizer.running_return", "kl_coef", "policy_metrics"}


def cases(name):
    """The examples of an agent: (name, environment, settings)."""
    module = agents.get(name)
    small = {field: value for field, value in SMALL.items() if field in module.Config.model_fields}
    return [(name, env_name, small | settings) for env_name, settings in EXAMPLES[name]]


CASES = [case for name in agents.names() for case in cases(name)]


def test_every_agent_has_examples():
    assert {name for name, *_ in CASES} == set(agents.names())


HEART = ("dqn", "ppo")
FIRST = [cases(name)[0] for name in (*HEART, "sac", "r2d2")]  # one of each family
COMPILED = FIRST[:3]
TRACED = [case for case in CASES if case not in COMPILED]  # and compiled with the slow tests


def params():
    for case in CASES:
        mark = pytest.mark.slow if case in TRACED else () if case[0] in HEART else pytest.mark.thorough
        yield pytest.param(case, id=case[0] if case in COMPILED else "-".join(case[:2]), marks=mark)


@pytest.fixture(scope="module", params=params())
def setup(request):
    """(module, agent, training, init, step), the last two compiled once for the whole file: a second trace fails."""
    name, env_name, settings = request.param
    module = agents.get(name)
    env, params = envs.make(env_name)
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(module.Config(**settings), *spaces, **model_of(module, spaces[0], env, params))
    pair = training.make(agent, env, params, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
    chex.clear_trace_counter()
    init = jax.jit(chex.assert_max_traces(lambda *args: pair.init(*args), 1))  # chex asks for a function with source
    return module, agent, pair, init, jax.jit(chex.assert_max_traces(lambda state: pair.step(state), 1))


def as_numbers(tree):
    """The leaves as NumPy arrays: keys as their data, what a buffer has stored as the numbers that its words hold."""
    tree = jax.tree.map(
        lambda x: packing.unpack(x) if isinstance(x, packing.Rows) else x,
        tree,
        is_leaf=lambda x: isinstance(x, packing.Rows),
    )
    return jax.tree.map(
        lambda x: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x), tree
    )


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, as_numbers(a), as_numbers(b))


def avals(tree):
    return jax.tree.map(lambda x: x.aval.update(sharding=None), tree)


def test_state_keeps_its_structure_dtypes_and_strong_types(setup):
    module, _, _, init, step = setup
    state = init(module.Hyper(), jax.random.key(0))
    after, metrics = step(state)
    assert avals(after) == avals(state)
    assert not any(aval.weak_type for aval in jax.tree.leaves(avals(state)))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(after))
    assert not any(np.isnan(x).any() for name, x in metrics.items() if name not in ("returns", "episode_return"))


def test_what_an_agent_declares_is_in_its_state_and_its_metrics(setup):
    """And what learning changes is declared: a network of another name cannot be left out of `init_from`."""
    module, agent, _, init, step = setup
    before = state = init(module.Hyper(), jax.random.key(0))
    for _ in range(3):
        state, metrics = step(state)
    fields = [*agent.trained, *START_ANEW]
    leaves, after = (jax.tree_util.tree_leaves_with_path(x.agent) for x in (before, state))
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    changed = {
        name
        for name, (_, old), (_, new) in zip(names, leaves, after, strict=True)
        if jnp.issubdtype(old.dtype, jnp.floating) and not np.array_equal(old, new)
    }
    undeclared = {name for name in changed if not any(f"{name}.".startswith(f"{field}.") for field in fields)}
    assert undeclared == set()
    for field in agent.trained:
        attrgetter(field)(state.agent)
    assert set(agent.finite) == {name for name in metrics if "loss" in name or "grad" in name}


def test_a_target_network_that_is_copied_has_the_newest_parameters(setup):
    module, _, _, init, step = setup
    before = init(module.Hyper(), jax.random.key(0))
    if not jax.tree.leaves(getattr(before.agent, "target_params", ())):
        pytest.skip("no target network")
    hyper = before.agent.hyper.replace(tau=jnp.float32(1), learning_rate=jnp.float32(0.01))
    state = step(before.replace(agent=before.agent.replace(hyper=hyper)))[0].agent
    of_critics_alone = jax.tree.structure(state.target_params) != jax.tree.structure(state.params)
    assert_equal(state.target_params, state.params["critics"] if of_critics_alone else state.params)


def test_a_warm_up_without_end_learns_nothing(setup):
    module, _, _, init, step = setup
    state = init(module.Hyper(), jax.random.key(0))
    hyper = state.agent.hyper.replace(warmup_steps=jnp.float32(1e30))
    after = step(state.replace(agent=state.agent.replace(hyper=hyper)))[0].agent
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-20), after.params, state.agent.params)


def test_other_hypers_and_a_restored_state_compile_nothing_new(setup):
    module, _, _, init, step = setup
    for rate in (0.1, 0.01):
        state = init(module.Hyper(), jax.random.key(1))
        hyper = state.agent.hyper.replace(learning_rate=jnp.float32(rate))
        state = state.replace(agent=state.agent.replace(hyper=hyper))
        restored = jax.tree.map(jnp.array, jax.device_get(state.replace(key=jax.random.key_data(state.key))))
        state = restored.replace(key=jax.random.wrap_key_data(restored.key))
        for _ in range(5):
            state, _ = step(state)
    assert (init._cache_size(), step._cache_size()) == (1, 1)


def test_a_state_can_be_donated(setup, mapped):
    """No two leaves are one buffer, which could not be given away twice; and all find a use, or lowering would warn."""
    module, _, _, init, step = setup
    state = init(module.Hyper(), jax.random.key(0))
    for tree in (state, step(state)[0]):
        leaves = jax.tree.leaves(tree.replace(key=jax.random.key_data(tree.key)))
        buffers = [x.unsafe_buffer_pointer() for x in leaves if x.size]
        assert len(set(buffers)) == len(buffers)
    held = sum(x.nbytes for x in jax.tree.leaves(state.replace(key=jax.random.key_data(state.key))))
    assert mapped[1].memory_analysis().alias_size_in_bytes > 0.99 * SEEDS * held  # all but a scalar


def test_donated_states_go_from_update_to_update(mapped):
    start, update = mapped
    state = start(jnp.full(SEEDS, 1e-3), jax.random.split(jax.random.key(0), SEEDS))
    for _ in range(5):
        before = state
        state, _ = update(before)
    assert any(x.is_deleted() for x in jax.tree.leaves(before))
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))


def test_the_key_decides(setup):
    module, _, _, init, step = setup

    def run(seed):
        return step(step(init(module.Hyper(), jax.random.key(seed)))[0])

    assert_equal(run(0), run(0))
    params = [as_numbers(run(seed)[0].agent.params) for seed in (0, 1)]
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, params), strict=True))


def test_no_key_is_used_twice(setup):
    module, _, pair, init, _ = setup
    state = init(module.Hyper(), jax.random.key(0))
    with jax.debug_key_reuse(True):  # which looks while it traces
        jax.jit(lambda *args: pair.init(*args)).trace(module.Hyper(), jax.random.key(0))
        jax.jit(lambda state: pair.step(state)).trace(state)
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(lambda key: jax.random.normal(key) + jax.random.normal(key)).trace(jax.random.key(0))


@pytest.fixture(scope="module")
def mapped(setup):
    """Programs for SEEDS seeds at once: (rates, keys) -> states, and states, which it takes, -> states and metrics."""
    module, _, pair, *_ = setup
    arguments = jnp.zeros(SEEDS), jax.random.split(jax.random.key(0), SEEDS)
    init = jax.jit(jax.vmap(lambda rate, key: pair.init(module.Hyper(learning_rate=rate), key)))
    init = init.lower(*arguments).compile()
    return init, jax.jit(jax.vmap(pair.step), donate_argnums=0).lower(init(*arguments)).compile()


def test_a_vmap_over_seeds_equals_a_loop(setup, mapped):
    """Integers exactly, real numbers to rounding, after one update."""
    module, _, _, init, step = setup
    start, update = mapped
    keys = jax.random.split(jax.random.key(5), SEEDS)
    together, _ = update(start(jnp.full(SEEDS, module.Hyper().learning_rate), keys))
    for i, key in enumerate(keys[:3]):
        alone = as_numbers(step(init(module.Hyper(), key))[0])
        one = as_numbers(jax.tree.map(lambda x, i=i: x[i], together))
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(one), strict=True):
            real = np.issubdtype(a.dtype, np.floating)
            np.testing.assert_allclose(a, b, rtol=1e-5 if real else 0, atol=1e-5 if real else 0)


def test_a_vmap_over_learning_rates_sweeps_them(mapped):
    start, update = mapped
    rates = jnp.zeros(SEEDS).at[:3].set([0.0, 1e-3, 1e-2])
    before = start(rates, jnp.stack([jax.random.key(0)] * SEEDS))
    params = as_numbers(jax.tree.map(jnp.copy, before.agent.params))  # the update takes its arguments
    after, _ = update(before)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).reshape(SEEDS, -1).sum(1), as_numbers(after.agent.params), params)
    distances = np.sum(jax.tree.leaves(moved), axis=0)
    assert distances[0] == 0
    assert 0 < distances[1] < distances[2]


def test_saved_loaded_and_continued_is_bit_equal(setup):
    module, _, _, init, step = setup
    state = init(module.Hyper(), jax.random.key(0))
    for _ in range(2):
        state, _ = step(state)
    leaves, treedef = jax.tree.flatten(state.replace(key=jax.random.key_data(state.key)))
    loaded = treedef.unflatten([jnp.asarray(np.array(x)) for x in leaves])
    loaded = loaded.replace(key=jax.random.wrap_key_data(loaded.key))
    assert_equal(step(loaded), step(state))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "env_name", "settings"), [pytest.param(*x, id="-".join(x[:2])) for x in TRACED])
def test_the_traced_update_of_another_case(name, env_name, settings):
    """Its state keeps structure, shapes, dtypes and strong types, no key is used twice, and metrics are declared."""
    module = agents.get(name)
    env, params = envs.make(env_name)
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(module.Config(**settings), *spaces, **model_of(module, spaces[0], env, params))
    pair = training.make(agent, env, params, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
    with jax.debug_key_reuse(True):
        start = jax.jit(lambda key: pair.init(module.Hyper(), key)).trace(jax.random.key(0))
        state = start.out_info
        after, metrics = jax.jit(lambda state: pair.step(state)).trace(state).out_info
    assert (jax.tree.structure(after), [str(x) for x in jax.tree.leaves(after)]) == (
        jax.tree.structure(state),
        [str(x) for x in jax.tree.leaves(state)],
    )
    for field in agent.trained:
        attrgetter(field)(after.agent)
    assert set(agent.finite) == {metric for metric in metrics if "loss" in metric or "grad" in metric}


@pytest.mark.parametrize(
    ("name", "env_name", "settings"),
    [
        pytest.param(
            *case,
            id="-".join(case[:2]),
            marks=() if case in FIRST else pytest.mark.slow,
        )
        for case in CASES
    ],
)
def test_double_precision_elsewhere_does_no_harm(name, env_name, settings):
    """A program may enable float64 for its own sake; what agents draw, count and learn stays as wide as it was."""
    module = agents.get(name)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        env, params = envs.make(env_name)
        spaces = env.observation_space(params), env.action_space(params)
        agent = module.make(module.Config(**settings), *spaces, **model_of(module, spaces[0], env, params))
        pair = training.make(agent, env, params, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
        state = jax.eval_shape(lambda key: pair.init(module.Hyper(), key), jax.random.key(0))
        after, metrics = jax.eval_shape(pair.step, state)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    learned = after.agent.params, after.agent.normalizer, *(metrics[metric] for metric in agent.finite)
    assert {x.dtype for x in jax.tree.leaves(learned)} == {np.dtype(np.float32)}


def test_the_program_does_not_grow_with_the_updates(setup):
    module, _, pair, init, _ = setup
    state = init(module.Hyper(), jax.random.key(0))

    def update(state, _):  # one function, which is traced once for both
        return pair.step(state)[0], None

    def instructions(updates):
        run = jax.jit(lambda s: jax.lax.scan(update, s, None, updates)[0])
        return len(re.findall(r"^\s*%\S+ = ", run.lower(state).as_text(), re.MULTILINE))

    assert instructions(10) == instructions(1000) > 100


def test_ten_seeds_start_together_without_lapack(mapped):
    """Batched QR calls in one program can hang a CPU for ever, so there must be none; and then no start hangs."""
    start, _ = mapped
    targets = re.findall(r'custom_call_target="([^"]+)"', start.as_text())
    assert not [t for t in targets if "lapack" in t or "qr" in t.lower()]
    keys = jax.random.split(jax.random.key(0), SEEDS)
    for _ in range(200):
        jax.block_until_ready(start(jnp.zeros(SEEDS), keys))


def test_hyper_holds_float32_arrays_in_the_state(setup):
    module, _, _, init, _ = setup
    hyper = init(module.Hyper(), jax.random.key(0)).agent.hyper
    assert all(x.dtype == jnp.float32 and x.shape == () for x in vars(hyper).values())


def test_policy_acts_from_the_actor_alone(setup):
    """The policy gives the same action for every key, and changes nothing."""
    module, agent, _, init, _ = setup
    state = init(module.Hyper(), jax.random.key(0))
    actor = agent.actor(state.agent)
    before = as_numbers(actor)
    obs = jax.tree.map(lambda x: x[0], state.envs.obs)
    policy, keys = jax.vmap(agent.policy, (None, None, None, 0)), jax.random.split(jax.random.key(1), 16)
    memory, actions, _ = policy(actor, agent.memory, obs, keys)
    assert all(len(np.unique(x, axis=0)) == 1 for x in jax.tree.leaves(actions))
    assert_equal(before, actor)
    assert jax.tree.structure(memory) == jax.tree.structure(agent.memory)

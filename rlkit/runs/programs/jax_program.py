"""Programs whose updates are one compiled loop: those with environments in JAX, and those that learn from a dataset."""

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from rlkit import hosts, training
from rlkit.hosts.devices import acting, prepare
from rlkit.hosts.failure import Failure
from rlkit.hosts.placeholder import HostEnv
from rlkit.runs import devices
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices.memory import num_bytes_on_all, tree_num_bytes
from rlkit.runs.programs.agent import make_agent
from rlkit.runs.programs.environments import HostEnvironments, JaxEnvironments
from rlkit.runs.programs.finite import all_finite, floats, watched
from rlkit.runs.programs.offline import Stored
from rlkit.runs.programs.protocol import Chunk
from rlkit.runs.programs.state import Runs, of_config
from rlkit.training import mesh, processes
from rlkit.training.data_parallel import shardings
from rlkit.training.train import step_keys, with_starts
from rlkit.types import Agent, Array, ConfigError, Env, PyTree

METRICS_BYTES = 2**26  # of a chunk's metrics at most, unless a single update has more
_CHUNK_AXES: Any = Chunk(state=0, count=0, finite=0, metrics=1)  # type: ignore[arg-type]  # of runs, or of devices


def _is_none(x: Any) -> bool:
    return x is None


def _part(state: PyTree, constant: PyTree) -> tuple[PyTree, PyTree]:
    """The leaves of a state that steps change, and those of which `constant` is True; None for the others."""
    changed = jax.tree.map(lambda x, is_constant: None if is_constant else x, state, constant)
    return changed, jax.tree.map(lambda x, is_constant: x if is_constant else None, state, constant)


def _whole(changed: PyTree, constant: PyTree) -> PyTree:
    """The state that `_part` divided."""
    return jax.tree.map(lambda x, y: y if x is None else x, changed, constant, is_leaf=_is_none)


def _loop(step: Callable, agent: Agent | None, length: int, changed: PyTree, constant: PyTree, count: Array) -> Chunk:
    """Up to `count` steps, their metrics in buffers of `length` rows; with an agent, up to one that is not finite.

    `_part` has divided the state. A loop copies whatever it returns, so it does not return the constant part, which may
    be a large dataset.
    """
    shapes = jax.eval_shape(step, _whole(changed, constant))[1]
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)

    def unfinished(chunk: Chunk) -> Array:
        return (chunk.count < count) & chunk.finite

    def body(chunk: Chunk) -> Chunk:
        state, metrics = step(_whole(chunk.state, constant))
        rows = jax.tree.map(lambda buffer, x: buffer.at[chunk.count].set(x), chunk.metrics, metrics)
        finite = jnp.bool_(True) if agent is None else all_finite(watched(agent, state, metrics))
        changed = jax.tree.map(lambda old, x: None if old is None else x, chunk.state, state, is_leaf=_is_none)
        return Chunk(changed, chunk.count + 1, finite, rows)

    return jax.lax.while_loop(unfinished, body, Chunk(changed, jnp.int32(0), jnp.bool_(True), rows))


def _loop_on_device(loop: Callable, changed: PyTree, constant: PyTree, count: Array) -> Chunk:
    """`_loop` of the runs on one device, with a count [1] of its own."""
    chunk = loop(changed, constant, count)
    return chunk._replace(count=chunk.count[None], finite=chunk.finite[None])


class JaxProgram:
    """A `Program` for an environment in JAX, or for a dataset and any environment, which then only evaluates policies.

    Several runs are one program, by `vmap`, spread over devices. Where the devices do not divide the runs, the states
    on them hold copies of the last run as well. A single run may be divided over devices, by `training.data_parallel`.

    Args:
      config: a validated config.
      runs: the seed and the Hyper of each run; None for those of the config, with its seeds.
      num_streams: as for `offline.Stored`.

    Raises:
      ConfigError: the environment cannot be made, or it or the dataset does not fit the agent or the batch; or there
        are too few devices, or the run cannot be divided over them.
      HostError: an environment outside of JAX fails when it is made.
    """

    def __init__(self, config: RunConfig, runs: Runs | None = None, num_streams: int | None = None):
        run, in_jax = config.run, not hosts.is_host(config.run.env)
        # Read where environments outside of JAX evaluate or collect: all else is a call of a compiled program.
        self.should_stop: Callable[[], bool] = lambda: False
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.on_progress: Callable[[str], None] = lambda text: None
        if not in_jax:
            prepare()
        self.mesh = devices.mesh_of_runs(run.devices, run.num_seeds)
        self.data_mesh = devices.mesh_of_data(run.devices, run.num_seeds)
        self.num_shards = 1 if self.data_mesh is None else self.data_mesh.size
        self.num_devices = self.num_shards if self.mesh is None else self.mesh.size
        if self.data_mesh is not None and run.dataset is not None:
            raise ConfigError(
                f"devices={run.devices} must be 1 or auto with a dataset and one seed: a dataset is learned from on "
                "one device; leave devices out, or give num_seeds"
            )
        self.environments: Any = JaxEnvironments(config) if in_jax else HostEnvironments(config, acting()[0], self)
        self.env: Env | HostEnv = self.environments.env
        self.eval_env: Env | HostEnv = self.environments.eval_env
        self.params = self.environments.params
        self.check, self.rollouts = self.environments.check, self.environments.rollouts
        self.close = self.environments.close
        self.config = config
        try:
            spaces = self.env.observation_space(self.params), self.env.action_space(self.params)
            # Of one device: it acts, and its policy is evaluated.
            self.agent: Agent = make_agent(config, *spaces, environments=self.environments)
            if run.dataset is None:
                self.stored = None
                self.training = self._training(self.data_mesh)
            else:
                self.stored = Stored(config, self.agent, self.env, self.params, num_streams)
                self.training = self.stored.training
        except BaseException:
            self.close()
            raise
        self.num_streams = self.stored and self.stored.num_streams
        self.batched = run.num_seeds > 1
        self.runs = runs or of_config(config)
        self.stop_if_not_finite = True  # False: a run that diverges goes on, as in a sweep, and harms no other
        self.note = devices.note(run.devices, run.num_seeds)

    def _training(self, data_mesh: Mesh | AbstractMesh | None) -> training.Training:
        """A run's training in its environment, divided over the devices of a mesh, or on one device."""
        run, agent = self.config.run, self.agent
        sizes: dict[str, Any] = {"num_envs": run.num_envs, "num_steps": run.num_steps, "reset_pool": run.reset_pool}
        if data_mesh is not None:
            spaces = self.env.observation_space(self.params), self.env.action_space(self.params)
            agent = make_agent(self.config, *spaces, mesh.DATA, environments=self.environments)
            agent.check(run.num_envs, run.num_steps, data_mesh.size)
        on_one = training.make(agent, self.environments.env, self.params, **sizes)
        if data_mesh is None:
            return on_one
        # Loops in environments of others, which start from constants, would not pass the check of what varies.
        return training.data_parallel(on_one, data_mesh, mesh.DATA, check_vma=False)

    @property
    def seeds(self) -> np.ndarray:
        return self.runs.seeds

    @property
    def _device_runs(self) -> Runs:
        """The runs as the devices hold them, or the only one."""
        if not self.batched:
            return jax.tree.map(lambda x: x[0], self.runs)
        return mesh.pad(self.runs, mesh.padded(len(self.seeds), self.mesh))

    def _over_runs(self, function: Callable) -> Callable:
        """A function of one run's values as one of the program's values."""
        return mesh.over_runs(function, self.mesh) if self.batched else function

    def _init(self, runs: Runs) -> PyTree:

        def one(run: Runs) -> PyTree:
            return self.training.init(run.hyper, jax.random.split(jax.random.key(run.seeds))[0])

        return self._over_runs(one)(runs)

    @cached_property
    def template(self) -> PyTree:
        state = self._device_template
        if not self.batched:
            return state
        num_runs, uneven = len(self.seeds), jax.tree.leaves(state)[0].shape[0] != len(self.seeds)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((num_runs, *x.shape[1:]), x.dtype, sharding=None if uneven else x.sharding),
            state,
        )

    @cached_property
    def _device_template(self) -> PyTree:
        """Shapes, dtypes and devices of the state."""
        state = jax.eval_shape(self._init, self._device_runs)
        if self.data_mesh is not None:
            places = shardings(state, self.data_mesh, mesh.DATA)
        elif self.mesh is not None:
            place = mesh.sharding(self.mesh)
            places = jax.tree.map(lambda _: place, state)
        else:
            return state
        return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state, places)

    def template_of(self, num_shards: int) -> PyTree:
        """Shapes and dtypes of the state of this single run, divided over another number of devices."""
        data_mesh = AbstractMesh((num_shards,), (mesh.DATA,)) if num_shards > 1 else None
        init, run = self._training(data_mesh).init, self._device_runs
        shapes = jax.eval_shape(lambda hyper: init(hyper, jax.random.key(0)), run.hyper)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)

    def export(self, state: PyTree) -> PyTree:
        """Return the state of the program's own runs, without copies that fill up devices; then in the host's memory.

        A slice on the devices would be a collective for each leaf, and XLA ends the process where a device of a busy
        CPU is 40 seconds late for one.
        """
        num_runs = len(self.seeds)

        def own(x: Any) -> Any:
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(own(jax.random.key_data(x)), impl=jax.random.key_impl(x))
            return np.asarray(x)[:num_runs]

        state = processes.gather(state)
        uneven = self.batched and jax.tree.leaves(state)[0].shape[0] != num_runs
        return jax.tree.map(own, state) if uneven else state

    def _place(self, state: PyTree) -> PyTree:
        """The state on the devices, where it is not there yet."""
        if self.data_mesh is not None:
            return processes.place(state, self._shardings)
        if self.mesh is None:
            return state
        total, place = mesh.padded(len(self.seeds), self.mesh), mesh.sharding(self.mesh)
        leaf = jax.tree.leaves(state)[0]
        if leaf.shape[0] == total and getattr(leaf, "sharding", None) == place:
            return state
        state = mesh.pad(state, total) if leaf.shape[0] != total else state
        return processes.place(state, jax.tree.map(lambda _: place, state))

    @property
    def num_bytes(self) -> int:
        """Bytes of the state, of what a chunk changes in it again, of each seed's rollout, and of a chunk's metrics."""
        changed, _ = _part(self._device_template, self._constant)
        held = tree_num_bytes if self.data_mesh is None else partial(num_bytes_on_all, number=self.num_shards)
        return (
            held(self._device_template)
            + held(changed)
            + self.config.run.num_seeds * self._rollout_num_bytes()
            + self.most_updates * self._metrics_num_bytes
        )

    @cached_property
    def _metrics_num_bytes(self) -> int:
        """Bytes of the metrics of an update of all runs."""
        return tree_num_bytes(jax.eval_shape(self._over_runs(self.training.step), self._device_template)[1])

    @property
    def most_updates(self) -> int:
        """Those of a metric line, or fewer: the metrics stay on the device until a call ends, and may take 64 MB."""
        return min(self.config.updates_per_line, max(1, METRICS_BYTES // self._metrics_num_bytes))

    def _rollout_num_bytes(self) -> int:
        """Bytes of one seed's rollout: two observations and some scalars for each step; 0 where there is none."""
        if self.stored is not None:
            return 0
        run = self.config.run
        obs = tree_num_bytes(self.template.envs.obs) // (run.num_seeds * run.num_envs)
        return self.config.steps_per_update * (2 * obs + 32)

    def start(self) -> PyTree:
        # Called once in a run, so nothing is cached.
        state = jax.jit(self._init, out_shardings=self._shardings)(self._device_runs)
        return state if self.stored is None else self.stored.fill(state, batched=self.batched)

    @cached_property
    def _shardings(self) -> PyTree:
        """The sharding of each leaf of a divided state; None for the compiler's choice."""
        return None if self.data_mesh is None else jax.tree.map(lambda x: x.sharding, self._device_template)

    def compile(self) -> None:
        _ = self._compiled_advance

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        """Make `count` updates, or fewer where one is not finite.

        The count is traced, so that one program serves every length up to `most_updates`. The state is not
        donated: where an update is not finite, the run goes back to before it, and Ctrl-C leaves nothing half done.
        """
        begin = time.perf_counter()
        changed, constant = _part(self._place(state), self._constant)
        chunk = self._compiled_advance(changed, constant, count)
        if self.mesh is not None:
            counts = jax.device_get(processes.gather(chunk.count))  # [D], each device's own
            if counts.min() < counts.max():  # a run is not finite, and other devices are further
                chunk = self._compiled_advance(changed, constant, counts.min())
            chunk = chunk._replace(count=counts.min(), finite=jax.device_get(processes.gather(chunk.finite)).all())
        chunk = chunk._replace(state=_whole(chunk.state, constant), metrics=processes.gather(chunk.metrics))
        if not isinstance(self.env, HostEnv):
            return chunk
        done = max(int(chunk.count), 1)  # waits for the device
        seconds = np.full(chunk.metrics["lengths"].shape[: 1 + self.batched], (time.perf_counter() - begin) / done)
        return chunk._replace(metrics=chunk.metrics | {"update_seconds": seconds})

    @cached_property
    def _step(self) -> Callable[[PyTree], tuple[PyTree, dict[str, Array]]]:
        """An update of the runs of one device."""
        return jax.vmap(self.training.step) if self.batched else self.training.step

    @cached_property
    def _constant(self) -> PyTree:
        """True for each leaf of the state that an update returns as it is, such as the steps of a dataset."""
        leaves, structure = jax.tree.flatten(self._device_template)
        if self.stored is None:  # then there are none of any size
            return jax.tree.unflatten(structure, [False] * len(leaves))
        program = jax.make_jaxpr(self._step)(self._device_template).jaxpr
        outputs = program.outvars[: len(leaves)]
        return jax.tree.unflatten(structure, [x is y for x, y in zip(program.invars, outputs, strict=True)])

    @cached_property
    def _compiled_advance(self) -> Callable[[PyTree, PyTree, np.int32], Chunk]:
        agent = self.agent if self.stop_if_not_finite else None
        function = partial(_loop, jax.jit(self._step), agent, self.most_updates)
        if self.mesh is not None:
            function = partial(_loop_on_device, function)
            function = mesh.spread(function, self.mesh, in_axes=(0, 0, None), out_axes=_CHUNK_AXES)
        count, parts = jax.ShapeDtypeStruct((), jnp.int32), _part(self._device_template, self._constant)
        places: Any = Chunk(state=self._shardings, count=None, finite=None, metrics=None)  # type: ignore[arg-type]
        return jax.jit(function, out_shardings=places).lower(*parts, count).compile()

    def compile_evaluation(self) -> None:
        if not isinstance(self.env, HostEnv):  # for those, acting is compiled in the first evaluation
            _ = self._compiled_evaluate

    def evaluate(self, state: PyTree) -> training.Evaluation:
        """Play greedy episodes, as the environments' `evaluate` does; leaves [N, E], or [S, N, E] for seeds.

        Seeds take turns in environments outside of JAX.
        """
        state = self._place(state)
        if not isinstance(self.env, HostEnv):
            if self.data_mesh is not None:
                actor = processes.gather(self._eval_functions[0](state))
                state = jax.device_put(actor, jax.local_devices()[0])
            evaluation = self._compiled_evaluate(state, self._device_runs.seeds)
            return processes.agree(self.export(jax.device_get(processes.gather(evaluation))))
        actor_of, policy = self._eval_functions
        actor = self.export(jax.device_get(actor_of(state)))

        def evaluate(seed: int, actor: PyTree, name: str = "") -> training.Evaluation:
            return self.environments.evaluate(
                self.agent, policy, actor, seed, lambda text: self.on_progress(name + text)
            )

        if not self.batched:
            return evaluate(int(self.seeds[0]), actor)
        results = [
            evaluate(seed, jax.tree.map(lambda x, index=index: x[index], actor), f"seed {seed}: ")
            for index, seed in enumerate(self.seeds.tolist())
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *results)

    @cached_property
    def _eval_functions(self) -> tuple[Callable[[PyTree], PyTree], Callable[..., Any]]:
        actor_of = jax.jit(self._over_runs(lambda state: self.agent.actor(state.agent)))
        return actor_of, jax.jit(jax.vmap(self.agent.policy, (None, 0, 0, 0)))

    @cached_property
    def _compiled_evaluate(self) -> Callable[[PyTree, np.ndarray], training.Evaluation]:
        """Evaluation of a state and of the seeds; of a divided run, of its actor, on the first device."""
        if self.data_mesh is not None:
            actor = jax.eval_shape(self._eval_functions[0], self._device_template)
            function = partial(self.environments.evaluate, self.agent)
            return jax.jit(function).lower(actor, self._device_runs.seeds).compile()

        def one(state: PyTree, seed: Array) -> training.Evaluation:
            return self.environments.evaluate(self.agent, self.agent.actor(state.agent), seed)

        return jax.jit(self._over_runs(one)).lower(self._device_template, self._device_runs.seeds).compile()

    def state_before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        # The same compiled program from the same state gives the same numbers; one update less, and all are finite.
        return self.advance(state, np.int32(int(chunk.count) - 1)).state

    def name_non_finite(self, before: PyTree, chunk: Chunk) -> str:
        metrics = jax.tree.map(lambda x: np.asarray(x[chunk.count - 1]), chunk.metrics)
        rollout = self._last_rollout(before)
        quantities = processes.gather(rollout | watched(self.agent, chunk.state, metrics))
        for name, quantity in quantities.items():
            for leaf in jax.tree.leaves(quantity):
                places = np.argwhere(~np.isfinite(np.asarray(leaf, np.float64)))
                if not len(places):
                    continue
                seed = f" of seed {self._device_runs.seeds[places[0][0]]}" if self.batched else ""
                index = places[0][self.batched :]
                environment = f" of environment {index[1]}" if name in rollout else ""
                return name + environment + seed
        return "a quantity"

    def _last_rollout(self, before: PyTree) -> dict[str, PyTree]:
        """Observations and rewards of the rollout that follows a state; leaves [T, N, ...], or [S, T, N, ...]."""
        if self.stored is not None:
            return {}

        def one(state: PyTree) -> dict[str, PyTree]:
            actor, run = self.agent.actor(state.agent), self.config.run
            *_, rollout_keys = step_keys(state.key, run.num_steps, run.num_envs)
            env, params = with_starts(self.environments.env, self.params, state.starts)
            _, steps, _ = training.rollout(self.agent, env, params, actor, state.envs, rollout_keys, run.num_steps)
            return {"obs": floats((steps.obs, steps.next_obs)), "reward": [steps.reward]}

        return jax.jit(self._over_runs(one))(self._place(before))

"""The agent of a run: with the user's own networks, and with what its environments tell of goals, rules and frames."""

import inspect
from functools import partial
from typing import Any

from rlkit import agents
from rlkit.agents.common.config import OffPolicyConfig
from rlkit.names import GAME_STATE, UnknownName, find_object, raised
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.programs.goals import with_goal_reward
from rlkit.spaces import Dict, Space
from rlkit.types import Agent, ConfigError


def make_agent(
    config: RunConfig,
    obs_space: Space,
    action_space: Space,
    axis_name: str | None = None,
    *,
    environments: Any = None,
) -> Agent:
    """Return the agent of a config, with the networks that its function of the user's makes, if it names one.

    Args:
      config: of the run.
      obs_space, action_space: those of its environment.
      axis_name: of the mesh axis over which the run is divided; None for one device.
      environments: of the run, whose rewards of other goals a replay in hindsight needs, and whose model an agent that
        plans; None for an agent without.

    Raises:
      ConfigError: no such function, or it fails; the agent does not fit the spaces or networks.
    """
    own = config.agent if environments is None else with_goal_reward(config, environments).agent
    if isinstance(own, OffPolicyConfig):
        own = own.model_copy(update={"replay_stack": config.frame_stack})
    module, name = agents.get(config.run.agent), config.run.network
    make = module.make if config.run.agent in agents.names() else partial(_make_own, config.run.agent, module)
    make = make if axis_name is None else partial(make, axis_name=axis_name)
    if environments is not None:
        plans = "model" in inspect.signature(module.make).parameters
        _check_game(config, environments.env, obs_space, plans=plans)
        make = partial(make, model=environments.model()) if plans else make
    if name is None:
        return make(own, obs_space, action_space)
    try:
        function = find_object(name)
        networks = function(obs_space, action_space)
    except UnknownName as error:
        raise ConfigError(f"network={show_value(name)}: {error}") from None
    except Exception as error:
        raise ConfigError(
            f"network={show_value(name)} must be a function (obs_space, action_space) -> networks, and it raised "
            f"{raised(error)}"
        ) from error
    if networks is None:
        raise ConfigError(
            f"network={show_value(name)} must be a function (obs_space, action_space) -> networks, and it returned "
            "None; add its `return`"
        )
    return make(own, obs_space, action_space, networks)


def _check_game(config: RunConfig, env: Any, obs_space: Space, *, plans: bool) -> None:
    """Raise ConfigError where an agent would learn values of the wrong sign, or would lose a part of observations."""
    run = config.run
    if getattr(env, "alternates", False) and not plans and run.agent != "bc":
        raise ConfigError(
            f"agent={run.agent!r} takes the value of the next observation for its own, and in env={run.env!r} the "
            "other player moves there; use env_kwargs: {opponent: self}, or agent: alphazero"
        )
    if not isinstance(obs_space, Dict) or GAME_STATE not in obs_space.spaces:
        return
    while env is not None and not hasattr(env, "game_model"):
        env = getattr(env, "env", None)
    if env is None:
        raise ConfigError(
            f"env={run.env!r} observes {GAME_STATE!r}, a name that is kept for the rules of a game and that no network "
            "has; give that part another name"
        )


def _make_own(name: str, module: Any, *arguments: Any, **named: Any) -> Agent:
    """An agent of the user's own, whose `init` is checked where it is traced, as runs change the Hyper in its state."""
    if len(arguments) > 3 and "networks" not in inspect.signature(module.make).parameters:
        raise ConfigError(f"agent={name!r} takes no network, as its function make has no argument networks; add it")
    if "axis_name" in named and "axis_name" not in inspect.signature(module.make).parameters:
        raise ConfigError(
            f"agent={name!r} is one of one device, as its function make has no argument axis_name; leave devices out"
        )
    try:
        agent = module.make(*arguments, **named)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"agent={name!r}: its function make raised {raised(error)}") from error
    if not isinstance(agent, Agent):
        raise ConfigError(f"agent={name!r}: make must return an rlkit.types.Agent, and it returned {agent!r:.60}")

    def init(*arguments: Any) -> Any:
        state = agent.init(*arguments)
        if not isinstance(getattr(state, "hyper", None), module.Hyper):
            raise ConfigError(
                f"agent={name!r}: the state of its agent must have the field hyper, a Hyper of its own; make it by "
                "rlkit.agents.base.as_arrays(hyper, config, num_envs)"
            )
        return state

    return agent._replace(init=init)

"""Networks of the user's own in a run: a function of the spaces, by the name `module:function` or as an object."""

from typing import Any

from rlkit import agents
from rlkit.names import UnknownName, find_object, name_of_object
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.spaces import Space
from rlkit.types import Agent, ConfigError


def name_of(function: Any) -> str:
    """Return the name `module:function` of a function that is given as an object.

    Raises:
      ConfigError: it is no function.
    """
    if not callable(function):
        raise ConfigError(
            f"network={function!r} must be a function (obs_space, action_space) -> networks, or its name "
            "'module:function'; give one"
        )
    return name_of_object(function)


def make_agent(config: RunConfig, obs_space: Space, action_space: Space) -> Agent:
    """Return the agent of a config, with the networks that its function of the user's makes, if it names one.

    Raises:
      ConfigError: no such function, or it fails; the agent does not fit the spaces or networks; a range has no effect.
    """
    for key, value in (config.run.population_ranges or {}).items():
        if reason := config.unused(action_space).get(key):
            raise ConfigError(f"population_ranges.{key}={show_value(value)} has no effect, as {reason}; leave it out")
    name, make = config.run.network, agents.get(config.run.agent).make
    if name is None:
        return make(config.agent, obs_space, action_space)
    try:
        function = find_object(name)
        networks = function(obs_space, action_space)
    except UnknownName as error:
        raise ConfigError(f"network={show_value(name)}: {error}") from None
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"network={show_value(name)} must be a function (obs_space, action_space) -> networks, and it raised "
            f"{type(error).__name__}: {line}"
        ) from error
    if networks is None:
        raise ConfigError(
            f"network={show_value(name)} must be a function (obs_space, action_space) -> networks, and it returned "
            "None; add its `return`"
        )
    return make(config.agent, obs_space, action_space, networks)

"""A package that registers an id with Gymnasium when it is imported."""

import gymnasium

gymnasium.register("tests/Registered-v3", "host_envs:Picture")

"""Advantages and value targets of a rollout, under any parameters of a policy with a value."""

from typing import Any

from rlkit.agents.common import normalization, policy_evaluation
from rlkit.agents.common.policy_evaluation import Actor, Evaluated
from rlkit.ops import losses
from rlkit.ops.returns import gae
from rlkit.types import Array, PyTree, Transition


def estimate(
    static: Any, state: Any, actor: Actor, rollout: Transition, core: PyTree
) -> tuple[Evaluated, Array, Array]:
    """The network's outputs for a rollout, the advantages and the value targets, all [T, N].

    Args:
      static: with a `config` (chunk_size, kl_penalty, normalize_advantage), a `policy` and an `axis_name`.
      state: with `hyper` (gamma, gae_lambda) and a `normalizer`.
      actor: with the parameters and the statistics of the policy's network.
      rollout: [T, N, ...].
      core: [T, N, ...] a recurrent network's memory before each step.
    """
    config = static.config
    evaluated = policy_evaluation.evaluate(
        static.policy, actor, rollout, core, config.chunk_size, keep_dist=config.kl_penalty
    )
    advantage = gae(
        normalization.scale_reward(state.normalizer, rollout.reward),
        evaluated.value,
        evaluated.next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=state.hyper.gamma,
        gae_lambda=state.hyper.gae_lambda,
    )
    target = advantage + evaluated.value
    if config.normalize_advantage == "batch":
        advantage = losses.normalize_advantage(advantage, axis_name=static.axis_name)
    return evaluated, advantage, target


def estimate_anew(static: Any, state: Any, actor: Actor, rollout: Transition) -> tuple[Evaluated, Array, Array]:
    """`estimate` with a recurrent network's memories as `actor` makes them from the one before the first step."""
    return estimate(static, state, actor, rollout, policy_evaluation.memories(static.policy, actor, rollout))

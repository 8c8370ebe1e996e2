"""Environments and settings with which the contract tests run each agent."""

EXAMPLES = {
    "alphazero": (("Probe-Nim", {"num_simulations": 4, "normalize_obs": True}),),
    "bc": (("Probe-Continuous", {}), ("Probe-MaskedAction", {})),
    "c51": (("Probe-ObservationAction", {"num_atoms": 11, "store_obs_once": True}),),
    "crossq": (("Probe-Continuous", {"critic_hidden_sizes": (8,), "n_step": 2, "replay": "prioritized"}),),
    "ddpg": (("Probe-Continuous", {}),),
    "dqn": (
        ("Probe-ObservationAction", {"normalize_obs": True, "target_every": 10}),
        ("Probe-MaskedAction", {"replay": "prioritized", "n_step": 3, "noisy": True, "dueling": True}),
    ),
    "iql": (("Probe-Continuous", {}), ("Probe-MaskedAction", {})),
    "iqn": (
        (
            "Probe-ObservationAction",
            {
                "num_quantiles": 4,
                "num_target_quantiles": 3,
                "num_value_quantiles": 5,
                "num_cosines": 8,
                "double": True,
                "replay": "prioritized",
                "normalize_obs": True,
            },
        ),
        (
            "Probe-MaskedAction",
            {
                "num_quantiles": 4,
                "num_target_quantiles": 3,
                "num_value_quantiles": 5,
                "num_cosines": 8,
                "munchausen": True,
                "dueling": True,
                "n_step": 3,
                "store_obs_once": True,
            },
        ),
    ),
    "ppo": (
        ("Probe-ObservationAction", {"normalize_obs": True}),
        ("Probe-Continuous", {"gsde": True, "normalize_reward": True}),
        ("Probe-Memory", {"recurrent": "mingru"}),
        ("Probe-HybridAction", {"squash": True, "kl_penalty": True, "exploration_bonus": 0.5}),
    ),
    "pqn": (("Probe-MaskedAction", {"normalize_obs": True}),),
    "qrdqn": (("Probe-ObservationAction", {"num_quantiles": 5, "replay": "prioritized"}),),
    "r2d2": (("Probe-Memory", {"burn_in": 2, "unroll_len": 4, "n_step": 2}),),
    "rebrac": (("Probe-Continuous", {"batch_size": 64, "num_critics": 1}),),
    "sac": (
        ("Probe-Continuous", {"gsde": True, "replay": "prioritized"}),
        ("Probe-MaskedAction", {"n_step": 2, "normalize_obs": True}),
        (
            "Probe-Memory",
            {"recurrent": "gru", "burn_in": 2, "unroll_len": 4, "replay": "prioritized", "policy_every": 2},
        ),
        ("Probe-Continuous", {"recurrent": "mingru", "burn_in": 1, "unroll_len": 4, "normalize_obs": True}),
    ),
    "td3": (("Probe-Continuous", {"n_step": 2}),),
    "td3_bc": (("Probe-Continuous", {"replay": "prioritized"}),),
    "tqc": (
        ("Probe-Continuous", {"num_quantiles": 5, "n_step": 2, "replay": "prioritized"}),
        (
            "Probe-Continuous",
            {"recurrent": "gru", "burn_in": 1, "unroll_len": 4, "n_step": 2, "replay": "prioritized"},
        ),
    ),
}

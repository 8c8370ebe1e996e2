"""Sizes of the parts of run.py, and the share of its time that each may take."""

from typing import Any

SHARES = {  # in order of worth
    "correctness": 5,
    "environments": 6,
    "seeds": 4,
    "rejax": 5,
    "trees": 4,
    "slices": 3,
    "convolutions": 1.5,
    "gradients": 3,
    "loops": 5,
}
FULL: dict[str, dict[str, Any]] = {
    "correctness": {"envs": 64, "steps": 32, "leaves": 2**16, "fanouts": [2, 8, 64]} | {"policies": 3},
    "environments": {"num_envs": [64, 256, 1024, 4096, 16_384, 65_536], "steps": 128, "updates": 4, "rounds": 7},
    "seeds": {"seeds": [1, 8, 64, 512], "envs_of_seed": 64, "steps": 128, "updates": 4, "rounds": 7},
    "rejax": {"num_envs": [2048, 16_384], "steps": 20_000_000, "rounds": 7},
    "trees": {"tree_leaves": [2**20, 2**26], "tree_batches": [256, 65_536], "fanouts": [4, 8, 16, 64], "rounds": 7},
    "slices": {"slices": [(5_000_000, 6_000_000), (346_000_000, 600_000_000)], "rounds": 7},
    "convolutions": {
        "images": [(4096, 10, 4, 16, 1), (4096, 10, 16, 32, 1), (512, 84, 4, 32, 2)],
        "repeats": 20,
        "rounds": 7,
    },
    "gradients": {
        "batches": [256, 4096],
        "capacity": 2**20,
        "envs_of_buffer": 1024,
        "hidden_sizes": (256, 256),
        "gradient_steps": 200,
        "rounds": 7,
    },
}
FULL["loops"] = FULL["gradients"] | FULL["environments"] | {"batch": 256, "num_envs": [64, 2048]}
QUICK = {
    "correctness": FULL["correctness"] | {"envs": 8, "steps": 16, "leaves": 2**10, "fanouts": [8], "policies": 1},
    "environments": FULL["environments"] | {"num_envs": [4, 16], "steps": 16, "updates": 1, "rounds": 2},
    "seeds": FULL["seeds"] | {"seeds": [1, 2], "envs_of_seed": 4, "steps": 16, "updates": 1, "rounds": 2},
    "rejax": {"num_envs": [4], "steps": 1024, "rounds": 2},
    "trees": FULL["trees"] | {"tree_leaves": [2**12], "tree_batches": [256], "fanouts": [4, 8], "rounds": 2},
    "slices": {"slices": [(100_000, 120_000)], "rounds": 2},
    "convolutions": FULL["convolutions"] | {"images": [(8, 10, 4, 16, 1)], "repeats": 2, "rounds": 2},
    "gradients": FULL["gradients"]
    | {"batches": [32], "capacity": 1024, "envs_of_buffer": 16, "hidden_sizes": (16,), "gradient_steps": 4}
    | {"rounds": 2},
}
QUICK["loops"] = QUICK["gradients"] | QUICK["environments"] | {"batch": 32, "num_envs": [4]}

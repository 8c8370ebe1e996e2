"""The settings of a slice index."""

from rlkit.ops._arrays import as_int

SAMPLING = ("slice", "episode")  # the items that can be drawn uniformly


def check_settings(
    num_rows: int, num_envs: int, slice_len: int, cross_episodes: bool, sampling: str
) -> tuple[int, int, int]:
    """Return R, N and L as ints. Raise ValueError, naming the setting, where one or `sampling` is out of range."""
    num_rows, num_envs = as_int("num_rows", num_rows), as_int("num_envs", num_envs)
    slice_len = as_int("slice_len", slice_len)
    if num_rows * num_envs >= 2**31:
        raise ValueError(f"num_rows * num_envs = {num_rows * num_envs} must be below 2^31; use several rings")
    if slice_len > num_rows:
        raise ValueError(f"slice_len={slice_len} must be at most num_rows={num_rows}; make the ring longer")
    if sampling not in SAMPLING:
        raise ValueError(f"sampling={sampling!r} must be one of {', '.join(map(repr, SAMPLING))}")
    if sampling == "episode" and cross_episodes:
        raise ValueError(
            "sampling='episode' needs cross_episodes=False, as such slices belong to no episode; use sampling='slice'"
        )
    return num_rows, num_envs, slice_len

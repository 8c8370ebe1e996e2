"""The environments of a pool in this process, without workers."""

from collections.abc import Callable, Iterable

from rlkit.hosts.worker import group, messages, shared_arrays
from rlkit.hosts.worker.group import Facts, Failed, Fault, Group
from rlkit.hosts.worker.recipe import Recipe, constructor


class Serial:
    """One group of environments that the caller steps, with the interface of `Processes`; nothing can detect a hang."""

    def __init__(self, recipe: Recipe, num_envs: int):
        self.recipe, self.num_envs = recipe, num_envs
        self.interrupted: Callable[[], bool] = lambda: False
        self.group: Group | None = None
        self.layout: shared_arrays.Layout | None = None
        self.buffer: bytearray | None = None

    def start(self, workers: Iterable[int]) -> tuple[dict[int, Facts], list[tuple[int, Fault]]]:
        """Make the environments; return the facts about them, and the fault of one that failed."""
        try:
            try:
                make_env = constructor(self.recipe)
            except Exception as error:
                raise Failed(group.fault(error, 0, group.MAKING)) from error
            self.group = Group(make_env, self.num_envs, 1, 0, lambda stage, env: None)
            if self.layout is not None:
                self.group.attach(self.views())
        except Failed as failed:
            return {}, self._remove(failed)
        assert self.group.facts is not None
        return {0: self.group.facts}, []

    def keep(self, shares: list[tuple[int, int]]) -> None:
        """Do nothing: one group has all environments."""

    def attach(self, layout: shared_arrays.Layout, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Allocate the arrays of a layout, for the environments."""
        assert self.group is not None
        self.layout, self.buffer = layout, bytearray(layout.num_bytes)
        self.group.attach(self.views())
        return []

    def views(self) -> shared_arrays.Views:
        """Return the arrays."""
        assert self.layout is not None
        return shared_arrays.make_views(self.layout, self.buffer)

    def run(self, operation: int, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Reset or step the environments; return the fault of one that failed, after which all are removed."""
        if self.group is None:  # a restart failed
            return []
        try:
            self.group.step() if operation == messages.STEP else self.group.reset()
        except Failed as failed:
            return self._remove(failed)
        return []

    def _remove(self, failed: Failed) -> list[tuple[int, Fault]]:
        self.close()
        return [(0, failed.fault)]

    def close(self) -> None:
        """Close the environments."""
        if self.group is not None:
            self.group.close()
        self.group = None

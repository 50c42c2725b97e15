"""Part of the agent's text: whose steps are the loop's, where it steps several optimizers, or makes
new ones. A session asks the same.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import weakref
from typing import Any

PACE_PATIENCE = 8
"""So many steps of another optimizer without one of ours, and it sets the pace. More than the
steps of a critic for one of the generator, fewer than a recorded window."""
MOST_OTHERS = 1000
NO_STEP, STEP, STEP_OF_ANOTHER = 0, 1, 2


class Pace:
    """The first optimizer that steps sets the pace: a loop may step several in one step. When it
    is gone, or steps no more, another one does: the next phase of a training makes a new one."""

    def __init__(self) -> None:
        self._ours: Any = None  # a weak reference: an id may come to mean another optimizer
        self._others: dict[int, tuple[Any, int]] = {}  # those beside it: steps since ours
        self._patience = PACE_PATIENCE
        self._has_changed = False

    def told(self, optimizer: Any) -> int:
        """An optimizer has stepped. Is that the end of a step?

        Returns:
            NO_STEP, STEP, or STEP_OF_ANOTHER: steps are others than before from here on, so what
            was recorded of those is not to be mixed with them.
        """
        ours = self._ours() if self._ours is not None else optimizer
        if ours is None:
            ours = self._heir(optimizer)
        if ours is not optimizer and not self._is_new_pace(optimizer):
            return NO_STEP
        self._ours = weakref.ref(optimizer)
        self._others = {key: (ref, 0) for key, (ref, _) in self._others.items() if ref()}
        self._others.pop(id(optimizer), None)
        changed, self._has_changed = self._has_changed, False
        return STEP_OF_ANOTHER if changed else STEP

    def _heir(self, optimizer: Any) -> Any:
        """Who sets the pace when ours has gone: one that was there beside it (an outer loop's),
        else its successor, whose steps are the same."""
        beside = [other for ref, _ in self._others.values() if (other := ref()) is not None]
        if not beside:
            return optimizer
        heir = next((other for other in beside if other is optimizer), beside[0])
        self._ours = weakref.ref(heir)
        self._has_changed = True
        return heir

    def _is_new_pace(self, optimizer: Any) -> bool:
        """Counts a step of another one. Waits for twice as many the next time: phases that take
        turns must not take the pace from each other for ever."""
        ref, steps = self._others.get(id(optimizer), (None, 0))
        if ref is None or ref() is not optimizer:
            if len(self._others) >= MOST_OTHERS:
                return False
            ref, steps = weakref.ref(optimizer), 0
        self._others[id(optimizer)] = (ref, steps + 1)
        if steps + 1 < self._patience:
            return False
        self._patience *= 2
        self._has_changed = True
        return True

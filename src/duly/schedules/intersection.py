"""What two schedules have in common. Nobody writes such a schedule down: it is what an exclusion takes out."""

from __future__ import annotations

from duly.schedules.combined import Difference


class Intersection(Difference):
    """The instants of ``of`` that are instants of ``less`` too; its bounds are those of their difference."""

    __slots__ = ()

    def _keeps(self, at: int) -> bool:
        return self.less._holds(at)

    def _joined(self, masks_of_parts: tuple[int, ...]) -> int:
        of, less = masks_of_parts
        return of & less

"""Points of the model's own numbers inside a box and a ball. What is found here is only proposed: the property judges each exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polytriton.frontend.norm_balls import L1, NormBall
from polytriton.runtime.attack.box import Box
from polytriton.runtime.input_balls import InputBalls, least_points


@dataclass(frozen=True, eq=False)
class Room:
    """What a target's box and its ball share, if it has one."""

    box: Box
    ball: NormBall | None = None

    @cached_property
    def radius(self) -> float:
        """So much less than the ball's that a point is still inside when each number is rounded, or cut to the box: a place or less."""
        assert self.ball is not None
        largest = np.maximum(np.abs(self.box[0]), np.abs(self.box[1]))
        place = np.spacing(largest).astype(np.float64) / self.ball.enclosed.scale[0]
        slip = place.sum() if self.ball.norm == L1 else np.sqrt((place**2).sum())
        return max(0.0, float(self.ball.enclosed.radius[0]) * (1 - 1e-12) - float(slip))

    def draw_inside(self, points: np.ndarray) -> np.ndarray:
        """The points [points, inputs] in the model's numbers, drawn to the ball's centre as far as they must be: the box holds it, so they
        stay in the box."""
        points = np.asarray(points, dtype=np.float64)
        lo, hi = (v.astype(np.float64) for v in self.box)
        if self.ball is not None:
            centre, scale = self.ball.enclosed.centre[0], self.ball.enclosed.scale[0]
            moved = np.clip(points, lo, hi) - centre
            far = moved / scale
            size = np.abs(far).sum(-1) if self.ball.norm == L1 else np.sqrt((far**2).sum(-1))
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(size > self.radius, self.radius / size, 1.0)
            points = centre + moved * share[..., None]
        return np.clip(points.astype(self.box[0].dtype), *self.box)

    def least(self, slopes: np.ndarray) -> np.ndarray:
        """Where each linear form [forms, inputs] is least; the middle of an input that it does not depend on."""
        lo, hi = (v.astype(np.float64) for v in self.box)
        if self.ball is None or not len(slopes):
            return np.where(slopes > 0, lo, np.where(slopes < 0, hi, lo / 2 + hi / 2))
        ball, low, high = _tensors([self], torch.float64), torch.from_numpy(lo)[None], torch.from_numpy(hi)[None]
        assert ball is not None
        return least_points(torch.from_numpy(np.ascontiguousarray(slopes)), low, high, ball).numpy()


class Rooms:
    """Those of a batch of points, one each, as tensors."""

    def __init__(self, rooms: list[Room], like: Tensor) -> None:
        self.lo, self.hi = (like.new_tensor(np.stack([r.box[k] for r in rooms])) for k in (0, 1))
        balls = _tensors(rooms, like.dtype)
        self.ball = None if balls is None else balls.move_cells(lambda v: v.to(like.device))

    def way(self, x: Tensor, slope: Tensor) -> Tensor:
        """Where to go from each point: in a box by the sign of the slope, its whole width; in a ball to where the slope's form is least. A
        share of that way leads to a point of the same convex set."""
        if self.ball is None:
            return -(self.hi - self.lo) * slope.sign()
        return least_points(slope, self.lo, self.hi, self.ball) - x

    def gain(self, x: Tensor, slope: Tensor) -> Tensor:
        """How much the slope's form falls along its own way, where the box leaves room, [points, 1]."""
        if self.ball is None:
            room = torch.where(slope > 0, x > self.lo, x < self.hi) * (self.hi - self.lo)
            return (slope.abs() * room).sum(1, keepdim=True)
        return -(slope * self.way(x, slope)).sum(1, keepdim=True)


def _tensors(rooms: list[Room], dtype: torch.dtype) -> InputBalls | None:
    """As tensors; all rooms of a batch have balls of one norm, or none has."""
    balls = [(r.ball.enclosed, r.radius) for r in rooms if r.ball is not None]
    if not balls or len(balls) < len(rooms) or len({b.norm for b, _ in balls}) > 1:
        return None
    centre, scale = (torch.tensor(np.concatenate([getattr(b, name) for b, _ in balls]), dtype=dtype) for name in ("centre", "scale"))
    return InputBalls(balls[0][0].norm, centre, scale, torch.tensor([r for _, r in balls], dtype=dtype))

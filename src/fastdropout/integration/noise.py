"""`Noise`: the context in which Moments flow and the sources of the noise are kept for the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fastdropout.integration import compiled
from fastdropout.integration.context import Context, fixed, quiet
from fastdropout.integration.pointwise import (
    Trail,
    common_trail,
    integrate_trail,
    is_pending,
    lazy,
    with_trail,
)
from fastdropout.integration.registry import TABLE, Entry, name_of
from fastdropout.integration.saving import keeping
from fastdropout.integration.sloped import SLOPED, linearised, with_slope
from fastdropout.integration.trace import MEMORY, Outputs, Source
from fastdropout.integration.unknown import without_rule
from fastdropout.integration.values import (
    converted,
    fingerprint,
    means,
    overwrite,
    state_of,
    without_gradient,
    wrapped,
)
from fastdropout.integration.where import module_path
from fastdropout.moments import Moments, as_moments, unchecked_moments
from fastdropout.serving import Refusal

Gains = Literal["moments", "plain"]
_HALF = (torch.float16, torch.bfloat16)


class Noise(Context):
    """The context of `integrate()`: Moments flow, and the sources of the noise are kept for the trace.

    >>> import torch, fastdropout as fd
    >>> with fd.integrate() as noise:
    ...     y = torch.nn.functional.dropout(torch.ones(2), 0.5)
    >>> type(noise).__name__, len(noise.sources), y.var
    ('Noise', 1, tensor([1., 1.]))
    """

    def __init__(
        self,
        *,
        gains: Gains = "moments",
        trace: bool = True,
        train_variance: bool = True,
        weight_var: Mapping[Tensor, Tensor] | None = None,
        predicts: bool = False,
        owners: dict[Any, Any] | None = None,
    ) -> None:
        super().__init__(weight_var)
        self.predicts = predicts
        # What was found out about whose a source is, by all that it may depend on: for a network that is
        # called again. Under plain gains nobody sees what the noise goes through.
        self._owners = owners if gains == "moments" else None
        self._passed = 0
        self._parameters: dict[int, Tensor] = {}  # those which the noise met
        if gains not in get_args(Gains):
            raise ValueError(f"gains must be one of {', '.join(get_args(Gains))}, got {gains!r}")
        self.gains, self.trace, self.cut = gains, trace, not train_variance
        self.sources: list[Source] = []
        self._calls: dict[str, int] = {}
        self._untraced = False

    # What the network calls.

    @keeping
    def serve(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a torch function of Moments by its rule; without one, the mean by the function itself."""
        entry = TABLE.get(func)
        self.passes(func, args, kwargs, factors=entry is None or not (entry.begins or entry.shifts))
        if entry is not None and entry.kind == "composite":
            with self.active():
                return entry.call(func, *args, **kwargs) if entry.generic else entry.call(*args, **kwargs)
        if kwargs.get("out") is not None:
            raise TypeError(
                f"{name_of(func)} cannot write Moments into a tensor: use its result, without out="
            )
        target = args[0] if kwargs.pop("inplace", False) and args else None
        with quiet():
            found: list[Moments] = []
            args, kwargs = self._take(args, found), self._take(kwargs, found)
            if self.gains == "plain" and (entry is None or not entry.begins):
                return func(*args, **kwargs)
            out = self._compute(func, entry, args, kwargs, found)
            if isinstance(target, Moments):
                overwrite(target, out)
                return target
            return out

    def _compute(
        self, func: Callable[..., Any], entry: Entry | None, args: Any, kwargs: Any, found: list[Moments]
    ) -> Any:
        if entry is None:
            return without_rule(func, args, kwargs, found)
        if entry.kind == "plain":
            return entry.call(*args, **kwargs) if not entry.generic else entry.call(func, *args, **kwargs)
        trail = common_trail(func, args, kwargs, found) if entry.pointwise else None
        if trail is not None and (any(map(is_pending, found)) or len({id(x) for x in found}) > 1):
            return lazy(lambda: self._along(trail), self, trail)
        if not entry.begins and entry.kind != "loss":
            if all(x.is_certain for x in found):
                return wrapped(func(*means(args), **means(kwargs)), None)
            refused = next((x._var for x in found if isinstance(x._var, Refusal)), None)
            if refused is not None:
                return wrapped(func(*means(args), **means(kwargs)), refused)
        half = next((x.dtype for x in found if x.dtype in _HALF), None) if entry.precise else None
        if half is not None:
            args, kwargs = converted(args, torch.float32), converted(kwargs, torch.float32)
        still = self.cut or not torch.is_grad_enabled()
        if entry.elementwise and isinstance(args[0], Moments):
            sloped = SLOPED.get(func) if still else None
            if sloped is not None and isinstance(args[0]._var, Tensor):
                out = with_slope(sloped, *args, **kwargs)
            else:
                out = self._elementwise(entry.call, *args, **kwargs)
        else:
            call = entry.frozen if still and entry.frozen is not None else entry.call
            out = call(func, *args, **kwargs) if entry.generic else call(*args, **kwargs)
        if half is not None:
            out = converted(out, half)
        out = without_gradient(out) if self.cut else out
        return out if trail is None else with_trail(out, trail)

    def _along(self, trail: Trail) -> Moments:
        """The moments of an element-wise expression of one random value."""
        base, of = trail
        half = base.dtype if base.dtype in _HALF else None
        base = base if half is None else converted(base, torch.float32)
        out = self._elementwise(integrate_trail, base, of)
        out = out if half is None else converted(out, half)
        return without_gradient(out) if self.cut else out

    def _elementwise(self, call: Callable[..., Moments], *args: Any, **kwargs: Any) -> Moments:
        return linearised(call, *args, **kwargs) if self.cut else call(*args, **kwargs)

    def _take(self, x: Any, found: list[Moments]) -> Any:
        """Arguments with Moments from outside entered; all Moments are collected in `found`."""
        if isinstance(x, Moments):
            if not x.is_certain and x._owner is not self:
                x = self.enter(x)
            if self.gains == "plain":
                return x._mean if isinstance(x, Moments) else x
            found.append(x)
            return x
        if isinstance(x, Tensor):
            # No gradient of a parameter is wanted of a prediction, and none of what it would keep.
            return x.detach() if self.predicts and x.requires_grad and x.is_leaf else x
        if type(x) is list or type(x) is tuple:
            return type(x)([self._take(item, found) for item in x])
        if type(x) is dict:
            return {key: self._take(value, found) for key, value in x.items()} if x else x
        return x

    # Where noise begins.

    def mask(
        self, x: Tensor | Moments, drop: float, *, scale: bool = True, shared: tuple[int, ...] = ()
    ) -> Any:
        """Dropout of each element, or of all elements along `shared` together.

        x d / keep where `scale`, else x d, with d = 0 with probability `drop`, else 1.
        """
        x = as_moments(x)
        if drop == 0:
            return x
        if drop == 1:
            return Moments.certain(torch.zeros_like(x._mean))
        keep = 1 - drop
        if scale:
            return self.multiplicative(x, x._mean, x._mean, drop / keep, 1.0, shared)
        return self.multiplicative(x, keep * x._mean, x._mean, keep * drop, keep, shared)

    def multiplicative(
        self,
        x: Moments,
        mean: Tensor,
        profile: Tensor,
        ratio: float,
        gain: float,
        shared: tuple[int, ...] = (),
    ) -> Any:
        """mean + gain (x - E[x]) + (profile + x - E[x]) eps, with V[eps] = ratio.

        V = gain^2 V[x] + ratio (profile^2 + V[x])
        """
        var = x._var if isinstance(x._var, Tensor) else None
        found = compiled.mask(profile, var, ratio, gain**2) if self.cut or not profile.requires_grad else None
        if found is not None:
            added, total = found
        else:
            square = fixed(profile).square()
            added = ratio * (square if var is None else square + var)
            total = added if var is None else added + gain**2 * var
        place = self._place(mean)
        if place is not None:
            first = x.is_certain
            if not shared:
                self._add("mask", place, added, is_first=first)
            else:
                one = mean.new_full([1 if d in shared else n for d, n in enumerate(mean.shape)], ratio)
                self._add("mask", place, one, fixed(profile), shared, is_first=first)
                if var is not None:
                    self._add("mask", place, ratio * var, is_first=first)
            mean = place
        if self.gains == "plain":
            return mean
        if isinstance(x._var, Refusal):
            return unchecked_moments(mean, x._var)
        return unchecked_moments(mean, total.detach() if self.cut else total)

    def keeps_sources(self) -> bool:
        """Whether there is a trace, and gradients for it."""
        if not self.trace or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            self._untraced = True
            return False
        return True

    def residual(self, mean: Tensor, var: Tensor) -> Tensor:
        """Noise of variance `var` that arises at `mean` from the noise of several others together.

        What slopes do not see: V[a] V[b] of a product a b.
        """
        place = self._place(mean)
        if place is None:
            return mean
        self._add("product", place, var)
        return place

    def gaussian(self, mean: Tensor, var: Tensor) -> Any:
        """New independent Gaussian variables: noisy weights, noisy inputs."""
        place = self._place(mean)
        if place is not None:
            self._add("gaussian", place, var, is_first=True)
            mean = place
        return mean if self.gains == "plain" else unchecked_moments(mean, var)

    def module(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module that is made for Moments, with plain functions inside."""
        self.passes(forward.__qualname__, args, kwargs)
        out = super().module(forward, args, kwargs)
        return without_gradient(out) if self.cut else out

    def passes(self, *what: Any, factors: bool = False) -> None:
        """Note what the noise goes through: functions, shapes, numbers, indices; factors if they matter."""
        if self._owners is not None:
            try:
                self._passed = hash((self._passed, fingerprint(what, self._parameters, factors)))
            except TypeError:  # something that has no hash: what it does cannot be known again
                self._owners = None

    def takes_places(self) -> bool:
        """Whether a fused loop may tell its noise by `record`: its gains are those of the moment rules."""
        return self.gains == "moments"

    def record(self, kind: str, place: Tensor, var: Tensor) -> None:
        """Noise of variance `var` that a fused loop adds at `place`, which has its gradient."""
        self._add(kind, place, var)

    def sees_steps(self) -> bool:
        """Whether every step's noise must be told: where there is a trace."""
        if self.trace and torch.is_grad_enabled():
            return True
        self._untraced = True
        return False

    def _place(self, mean: Tensor) -> Tensor | None:
        """A place in the mean path of its own, to which gradients are taken; it copies nothing."""
        if not self.keeps_sources():
            return None
        return mean.view_as(mean) if mean.requires_grad else mean.detach().requires_grad_()

    def _add(
        self,
        kind: str,
        place: Tensor,
        var: Tensor,
        profile: Tensor | None = None,
        dims: tuple[int, ...] = (),
        is_first: bool = False,
    ) -> None:
        name = module_path()
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self.sources.append(Source(name, call, kind, place, var, profile, dims, is_first))

    # What the user asks.

    def var(
        self,
        y: Tensor | Moments,
        *,
        batch_dim: int | None = 0,
        create_graph: bool = False,
        memory: int = MEMORY,
    ) -> Tensor:
        """The traced variance of every element of `y`: all correlations between units are included."""
        total: Tensor | None = None
        outputs = self._outputs(y, batch_dim, memory)
        with quiet():
            for _, part in outputs.variances(create_graph):
                total = part if total is None else total + part
            total = torch.zeros_like(outputs.table) if total is None else total
            out = outputs.restore(total)
            return out if create_graph else out.detach()

    def std(self, y: Tensor | Moments, **options: Any) -> Tensor:
        """The traced standard deviation of every element of `y`."""
        return self.var(y, **options).sqrt()

    def covariance(self, y: Tensor | Moments, *, batch_dim: int | None = 0, memory: int = MEMORY) -> Tensor:
        """The traced covariance between the outputs of each example, shape (examples, outputs, outputs).

        With `batch_dim=None` between all elements of `y`, shape (elements, elements).
        """
        outputs = self._outputs(y, batch_dim, memory)
        with quiet():
            total = outputs.covariance().detach()
            return total if outputs.batch_dim is not None else total[0]

    def shares(
        self,
        y: Tensor | Moments,
        *,
        by: Literal["module", "call"] = "module",
        batch_dim: int | None = 0,
        memory: int = MEMORY,
    ) -> dict[str, Tensor]:
        """Which share of the traced variance comes from where: a tensor of the shape of `y` for each source.

        The names are the paths of the modules in which the noise arises. With `by="call"` a module that is
        called several times (in a loop over steps) has an entry for each call, `name[0]`, `name[1]`, ...
        Shares add up to 1, or to 0 where there is no variance.
        """
        if by not in ("module", "call"):
            raise ValueError(f"by must be one of module, call, got {by!r}")
        outputs = self._outputs(y, batch_dim, memory)
        found: dict[str, Tensor] = {}
        with quiet():
            for source, part in outputs.variances():
                name = source.name if by == "module" else f"{source.name}[{source.call}]"
                found[name] = found[name] + part if name in found else part
            total = sum(found.values(), torch.zeros_like(outputs.table))
            total = torch.where(total > 0, total, 1)
            return {name: outputs.restore(part / total).detach() for name, part in found.items()}

    def origins(
        self, y: Tensor | Moments, *, batch_dim: int | None = 0, memory: int = MEMORY
    ) -> dict[str, Tensor]:
        """The variance of `y`, summed over its elements, by each element of each source: which step or input.

        Names are those of `shares(by="call")`; each tensor has the shape of what was dropped there, with
        length 1 where one mask covers a whole dimension.
        """
        outputs = self._outputs(y, batch_dim, memory)
        with quiet():
            return {f"{s.name}[{s.call}]": part.detach() for s, part in outputs.elements()}

    def _outputs(self, y: Tensor | Moments, batch_dim: int | None, memory: int) -> Outputs:
        if self._untraced:
            raise RuntimeError(
                "the noise was not traced, because gradients were off (torch.no_grad, inference_mode, "
                "checkpoint with use_reentrant=True) or trace=False was given: call the network with "
                "gradients on, or fastdropout.integrate(model)"
            )
        mean = y._mean if isinstance(y, Moments) else y
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            raise TypeError(f"y must be Moments or a floating-point tensor, got {type(y).__name__}")
        if batch_dim is not None and mean.ndim and not -mean.ndim <= batch_dim < mean.ndim:
            raise ValueError(f"batch_dim must be a dimension of y, which has {mean.ndim}, got {batch_dim}")
        with quiet():
            if self._owners is None:
                return Outputs(mean, self.sources, batch_dim, memory)
            kinds = tuple((s.name, s.call, s.place.shape, s.dims) for s in self.sources)
            key = (self._passed, kinds, mean.shape, batch_dim, state_of(self._parameters))
            outputs = Outputs(mean, self.sources, batch_dim, memory, self._owners.get(key))
            # Shapes of batches that come again; more are a stream of new ones. What had no gradient is
            # nobody's so far, and need not stay so.
            if len(self._owners) < 64 and outputs.is_sure:
                self._owners[key] = outputs.owners
            return outputs

"""The backward pass of the fused layer, derived by hand: the same walk as `forward.py`, from the end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastdropout.moments import unchecked_moments
from fastdropout.recurrent import buffers, kernel
from fastdropout.recurrent.forward import Forward, Inputs, Kept, addresses
from fastdropout.recurrent.products import step_product


class Backward:
    """The gradients of all inputs, gathered while the chunks are walked backwards.

    `needs` says of each input whether its gradient is asked for. `outputs` are the gradients of the outputs:
    mean and variance of all units, then of the last state (2, pieces, units) and of the last cells.
    """

    def __init__(
        self, forward: Forward, mean: Tensor, var: Tensor, last: Tensor, last_cells: Tensor, needs: Inputs
    ) -> None:
        self.forward, self.needs = forward, needs
        self.grad_mean, self.grad_var = mean.contiguous(), var.contiguous()
        self.last, self.last_cells = last, last_cells
        given, like = forward.inputs, forward.beginning
        # (in, out): products with the narrow side first are faster.
        self.w_ih_mean, self.w_ih_var = given.w_ih.new_zeros(2, *given.w_ih.t().shape)
        self.w_hh = given.w_hh.new_zeros(2, *given.w_hh.shape)
        self.bias = like.new_zeros(2, forward.given + forward.apart)
        self.w_ih_noise = None if given.w_ih_var is None else torch.zeros_like(self.w_ih_mean)
        self.w_hh_noise = None if given.w_hh_var is None else torch.zeros_like(given.w_hh)
        self.beginning = torch.zeros_like(like[:2])
        self.x_mean = torch.empty_like(given.x_mean) if needs.x_mean else None
        self.x_var = torch.empty_like(given.x_mean) if needs.x_var and given.x_var is not None else None
        # Of what enters the step that was walked last, (2, pieces, units): through the product, and past it.
        self.frozen = forward.options.frozen
        self.entering = (torch.zeros_like if self.frozen else torch.empty_like)(self.beginning)
        weights = forward.weights[:1] if self.frozen else forward.weights
        self.product = step_product(weights.transpose(1, 2), len(forward.sizes), forward.sizes[0])
        carries = forward.cell.carries != "nothing"
        self.flow = torch.zeros_like(self.beginning) if carries else self.beginning[:, :0]
        self.flow_beginning = torch.zeros_like(self.flow)
        # Of an LSTM: of `norms`, a sum a thread, and of the `level` that enters the step walked last.
        self.norms = self.level = self.level_beginning = like.new_empty(0)
        if forward.norms is not None:
            threads = 1 if forward.kernel is None else forward.kernel.most_threads()
            self.norms = like.new_zeros(threads, forward.units)
            self.level, self.level_beginning = like.new_zeros(2, like.shape[1])
        self.place = torch.empty_like(given.place) if needs.place and given.place is not None else None

    def add(self, steps: range, kept: Kept) -> None:
        """Walk a chunk backwards and gather its share of the gradients."""
        forward, full = self.forward, self.entering.shape[1]
        rows = forward.rows(steps)
        gradient = buffers.empty(kept.pre, *kept.pre.shape)
        pull = self._pull(rows, steps, kept, gradient)
        carried = forward.carried(steps, kept)
        recurrent = gradient[:, :, forward.apart :]
        inside = sorted(steps)
        parts = recurrent.split([forward.sizes[t] for t in inside], 1)
        blocks = dict(zip(inside, parts, strict=True))
        for t in reversed(steps):
            size, common = forward.sizes[t], forward.steps.common(t, -1)
            pull(forward.starts[t] - rows.start, size, forward.steps.common(t, 1), carried(t))
            entering = self.entering if size == full else self.entering[:, :size]
            for k, product in enumerate(self.product(blocks[t][: 1 if self.frozen else 2])):
                entering[k] = product
            if self.frozen:
                self.flow[1:].zero_()
                self.level.zero_()
            if self.place is not None:  # after the mask: without the probability in the weights of the mean
                torch.div(entering[0], forward.keep, out=self.place[forward.steps.rows(t)])
            if forward.inputs.w_hh_var is not None and not self.frozen:
                units = forward.entering_step(t, steps, kept.state, forward.beginning)
                self._through_square(entering, blocks[t][1] @ forward.inputs.w_hh_var, units)
            if common < size:  # pieces that begin here
                self.beginning[:, common:size] = entering[:, common:]
                self.flow_beginning[:, common:size] = self.flow[:, common:size]
                self.level_beginning[common:size] = self.level[common:size]
        if self.needs.w_hh or self.needs.w_hh_var:
            units = forward.all_entering(steps, kept.state)
            self.w_hh.baddbmm_(recurrent.transpose(1, 2), units)
            if self.w_hh_noise is not None:
                self.w_hh_noise.addmm_(recurrent[1].t(), forward.square(units))
        if self.needs.bias:
            self.bias[0] += gradient[0].sum(0)
        if self.needs.bias_var:
            self.bias[1] += gradient[1].sum(0)
        self._add_input(rows, gradient[:, :, : forward.given])

    def _through_square(self, entering: Tensor, gradient: Tensor, units: Tensor) -> None:
        """Add the gradient of `forward.square(units)` to that of the units, mean and u."""
        entering[0].addcmul_(units[0], gradient, value=2 * self.forward.keep**2)
        entering[1] += gradient

    def _pull(
        self, rows: slice, steps: range, kept: Kept, gradient: Tensor
    ) -> Callable[[int, int, int, tuple[Tensor, Tensor] | None], object]:
        """From the gradients of a step's outputs to those of its pre-synaptic moments.

        The function takes the step's first row in the chunk, its size, how many pieces have a next step, and
        what is carried into the step; it replaces `flow` by the gradient of that.
        """
        forward, own = self.forward, self.forward.own(steps)
        out = kept.state[0, own]
        cells = kept.carry[:, own] if forward.cell.carries == "cell" else kept.carry
        given = self.grad_mean[rows], self.grad_var[rows]
        if forward.kernel is None:
            return self._by_autograd(kept, out, given, gradient)
        ends = torch.zeros_like(self.flow) if forward.cell.carries == "hidden" else self.last_cells
        arguments = kernel.Backward(
            forward.units,
            kernel.RULES[forward.options.rule],
            *addresses(kept.pre),
            out.data_ptr(),
            *addresses(cells),
            given[0].data_ptr(),
            given[1].data_ptr(),
            *addresses(self.entering),
            *addresses(self.last),
            *addresses(self.flow),
            *addresses(ends),
            *addresses(gradient),
            forward.keep,
            forward.spread,
        )
        if forward.norms is not None:
            arguments.norms, arguments.level = forward.norms.data_ptr(), kept.level.data_ptr()
            arguments.dnorms, arguments.dlevel = self.norms.data_ptr(), self.level.data_ptr()
        arguments.alive = (ends, given, out, cells)  # what the addresses are of
        call = forward.kernel.backward

        def pull(row: int, size: int, common: int, carried: tuple[Tensor, Tensor] | None) -> None:
            call(arguments, row, size, common, *kernel.pointers(carried))

        return pull

    def _by_autograd(
        self, kept: Kept, out: Tensor, given: tuple[Tensor, Tensor], gradient: Tensor
    ) -> Callable[[int, int, int, tuple[Tensor, Tensor] | None], None]:
        """Where a cell has no kernel: its `step` is differentiated by autograd, one step at a time."""
        forward, cell, following = self.forward, self.forward.cell, self.entering
        norms, pre = forward.norms, kept.pre

        def pull(row: int, size: int, common: int, carried: tuple[Tensor, Tensor] | None) -> None:
            here, on = slice(row, row + size), slice(row, row + common)
            g_mean, g_var = (
                g[here] + torch.cat([g.new_zeros(common, forward.units), h[common:size]])
                for g, h in zip(given, self.last, strict=True)
            )
            g_mean[:common] += following[0, :common]
            g_mean[:common] += 2 * forward.spread * out[on] * following[1, :common]
            g_var[:common] += forward.keep * following[1, :common]
            if norms is not None:
                g_var[:common] += self._level_share() * self.level[:common, None]
            if cell.carries == "hidden":
                g_mean[:common] += self.flow[0, :common]
                g_var[:common] += self.flow[1, :common]
            with torch.enable_grad():
                leaves = [p.detach().requires_grad_() for p in (*pre[:, here], *(carried or ()))]
                inward = unchecked_moments(*leaves[2:]) if carried else None
                recurring = None
                if norms is not None:
                    recurring = (kept.level[here, None] * norms).requires_grad_()
                    leaves.append(recurring)
                h, c = cell.step(unchecked_moments(*leaves[:2]), inward, forward.options.rule, recurring)
                made, grads = [h.mean, h.var], [g_mean, g_var]
                if c is not None:
                    made += [c.mean, c.var]
                    grads += [
                        torch.cat([f[:common], e[common:size]])
                        for f, e in zip(self.flow, self.last_cells, strict=True)
                    ]
                found = torch.autograd.grad(made, leaves, grads)
            gradient[0, here], gradient[1, here] = found[:2]
            if carried:
                self.flow[0, :size], self.flow[1, :size] = found[2:4]
            if norms is not None:
                self.norms[0] += kept.level[here] @ found[-1]
                self.level[:size] = found[-1] @ norms

        return pull

    def _level_share(self) -> float:
        """What the variance of one hidden unit counts in `level`."""
        return self.forward.keep**2 / self.forward.units

    def _add_input(self, rows: slice, gradient: Tensor) -> None:
        forward, needs, given = self.forward, self.needs, self.forward.inputs
        drop = forward.options.drop_input
        x, noise = given.x_mean[rows], forward.input_noise(rows)
        if self.w_ih_noise is not None:
            self.w_ih_noise.addmm_(forward.input_square(rows).t(), gradient[1])
        if needs.w_ih:
            self.w_ih_mean.addmm_(x.t(), gradient[0])
            if noise is not None:
                self.w_ih_var.addmm_(noise.t(), gradient[1])
        if self.x_mean is None and self.x_var is None:
            return
        through_noise = through_squares = None
        if not self.frozen or self.x_var is not None:
            if given.w_ih_var is not None:
                through_noise = gradient[1] @ given.w_ih_var
            if drop or self.x_var is not None:
                through_squares = gradient[1] @ given.w_ih**2
        if self.x_mean is not None:
            found = torch.mm(gradient[0], given.w_ih * (1 - drop), out=self.x_mean[rows])
            if drop and through_squares is not None and not self.frozen:
                found.addcmul_(x, through_squares, value=2 * (1 - drop) * drop)
            if through_noise is not None and not self.frozen:
                found.addcmul_(x, through_noise, value=2 * (1 - drop))
        if self.x_var is not None and through_squares is not None:
            if through_noise is not None:
                through_squares += through_noise
            torch.mul(through_squares, 1 - drop, out=self.x_var[rows])

    def result(self) -> Inputs:
        """The gradient of each input, None where it is not asked for."""
        forward, given = self.forward, self.forward.inputs
        keep, spread = forward.keep, forward.spread
        h_mean = self.beginning[0] + 2 * spread * given.h_mean * self.beginning[1]
        h_var = keep * self.beginning[1]
        c_mean = c_var = None
        w_hh = (self.w_hh[0] * keep).addcmul_(given.w_hh, self.w_hh[1], value=2)
        if forward.norms is not None:
            counts = forward.beginning[2].mean(-1) >= forward.options.noise
            h_var = h_var + self._level_share() * (counts * self.level_beginning)[:, None]
            rows, gradient = (forward.cell.returning_rows(w) for w in (given.w_hh, w_hh))
            gradient.addcmul_(rows, self.norms.sum(0)[:, None], value=2)
        if forward.cell.carries == "hidden":
            h_mean, h_var = h_mean + self.flow_beginning[0], h_var + self.flow_beginning[1]
        elif forward.cell.carries == "cell":
            c_mean, c_var = self.flow_beginning
        w_ih = self.w_ih_mean.t() * (1 - forward.options.drop_input)
        w_ih.addcmul_(given.w_ih, self.w_ih_var.t(), value=2)
        found = Inputs(
            x_mean=self.x_mean,  # type: ignore[arg-type]
            x_var=self.x_var,
            h_mean=h_mean,
            h_var=h_var,
            c_mean=c_mean,
            c_var=c_var,
            w_ih=w_ih,
            w_hh=w_hh,
            bias=self.bias[0],
            w_ih_var=None if self.w_ih_noise is None else self.w_ih_noise.t(),
            w_hh_var=self.w_hh_noise,
            bias_var=self.bias[1],
            place=self.place,
        )
        return Inputs(*(g if needed else None for g, needed in zip(found, self.needs, strict=True)))  # type: ignore[arg-type]

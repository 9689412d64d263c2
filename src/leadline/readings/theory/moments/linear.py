"""Moment rules of matrix products, with a weight or of two signals: linear layers, matmul, einsum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.readings.theory.common_tokens import (
    attended_values,
    attention_logits,
    common_tokens_gain,
    pair_excess,
)
from leadline.readings.theory.field import RandomField, contracted, scaled, unbroadcast
from leadline.readings.theory.gradient import (
    Terms,
    gradient_field,
    new_noise,
    new_radial_noise,
    radial_part,
    weighted,
)
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.arithmetic import add_signals, scale_signal
from leadline.readings.theory.signal import Signal, fluctuation, rearranged

LETTERS = "abcdefghijklmnopqrstuvw"
Operand = tuple[int, Signal, str]


def contraction(call: Call, a: Operand, b: Operand, out: str) -> Signal:
    """The signal of a sum of products over the letters that `out` lacks; Gaussian by the central limit theorem."""
    field = contracted(a[1].field, a[2], b[1].field, b[2], out)
    noise = call.sources.fluctuation(a[1]) + call.sources.fluctuation(b[1])
    return call.sources.gaussian(field, noise)


def pull_back_factors(g: RandomField, letters: str, a: Operand, b: Operand) -> dict[int, Terms]:
    """Gradients of both factors: each is a contraction of the gradient with the other factor."""
    gradients: dict[int, Terms] = {}
    for (value, x, own), (_, other, its) in ((a, b), (b, a)):
        field = contracted(
            g, letters, other.field, its, "".join(each for each in own if each in letters + its)
        )
        gradients[value] = new_noise(_completed(field, own, letters + its, x.field))
    return gradients


def _completed(field: RandomField, letters: str, present: str, like: RandomField) -> RandomField:
    """The gradient with the axes that were summed in one factor alone: it is equal along them."""
    if all(letter in present for letter in letters):
        return field
    share = iter(field.share)
    full = tuple(next(share) if letter in present else field.ms for letter in letters)
    return replace(field, shape=like.shape, share=full)


@moment_rule(assumes="weights are independent of the signal and of each other")
def linear(call: Call) -> MomentMap:
    r"""$y = x W^T + b$ with $n$ inputs and $m$ outputs:

    $$ E[y^2] = n\,E[W^2]\,q_x + n(n-1)\,E[W]^2\,\mu_x^2 + E[b^2], \qquad
       E[y y'] = n\,E[W^2]\,E[x x'] + \ldots + E[b^2], \qquad g_x^2 = m\,E[W^2]\,g_y^2 $$
    for neighbors $x, x'$ (tokens, samples); all of them share the bias.
    """
    (value, x), weight = call.read(), call.signal("weight", 1)
    weight_id = call.id("weight", 1)
    if weight is None or weight_id is None:
        raise UnpredictableError("nothing is known about the weight")
    letters = LETTERS[: len(x.field.shape)]
    out_letters = letters[:-1] + ("z" if len(weight.field.shape) == 2 else "")
    own = ("z" if len(weight.field.shape) == 2 else "") + letters[-1]
    product = contraction(call, (value, x, letters), (weight_id, weight, own), out_letters)
    return biased(
        call, product, call.id("bias", 2), out_letters, (value, x, letters), (weight_id, weight, own)
    )


def biased(call: Call, product: Signal, bias: int | None, letters: str, a: Operand, b: Operand) -> MomentMap:
    """The moment map of a product plus a bias."""
    out = product
    if bias is not None:
        if bias not in call.signals:
            raise UnpredictableError("nothing is known about the bias")
        out = replace(
            add_signals(call, product, expanded(call.signals[bias], product.field.shape)), noise=product.noise
        )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        gradients = pull_back_factors(g, letters, a, b)
        value, x, own = a
        if out.field.ms > 0 and own[-1] not in letters:
            # sum g x = sum g (y - b), over n features of x and m of y
            sizes = (
                out.field.shape[-1] / x.field.shape[-1] if letters[-1] not in own else 1 / x.field.shape[-1]
            )
            factor = math.sqrt(sizes * product.field.ms / out.field.ms)
            own_field = gradients[value][0].field
            gradients[value] = new_radial_noise(own_field, x, radial_part(grads[0], out), factor)
        if bias is not None:
            gradients[bias] = new_noise(unbroadcast(g, call.signals[bias].field.shape))
        return gradients

    return single_output(out, back)


@moment_rule(assumes="the two factors are independent")
def matmul(call: Call) -> MomentMap:
    r"""$y_{ik} = \sum_j a_{ij} b_{jk}$: $E[y^2] = n\,q_a q_b + n(n-1)\,a_j b_j$, with $a_j$ what $a$ shares along $j$.

    With rows of attention weights that sum to 1, $q_y = P_2 q_v + (1 - P_2)\,\bar v$, $P_2 = E\sum_j p_j^2$: attention
    written as two products needs no extra rule.
    """
    (left, a), (right, b) = call.read(0), call.read(1)
    if call.op.callable.endswith("__rmatmul__"):
        (left, a), (right, b) = (right, b), (left, a)
    letters = _inner_letters if call.op.name == "inner" else _matmul_letters
    letters_a, letters_b, out = letters(len(a.field.shape), len(b.field.shape))
    return _contract(call, (left, a, letters_a), (right, b, letters_b), out)


def _contract(call: Call, a: Operand, b: Operand, out: str) -> MomentMap:
    a, b = _without_ones(a, b), _without_ones(b, a)
    signal = _with_common_tokens(call, contraction(call, a, b, out), a, b)
    if a[0] == b[0]:
        raise UnpredictableError("a product of a tensor with itself")

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        gradients = pull_back_factors(gradient_field(grads[0], signal), out, a, b)
        fields = {value: terms[0].field for value, terms in gradients.items()}
        fields[a[0]] = scaled(fields[a[0]], math.sqrt(_common_tokens_factor(call, b[0])))
        return {
            value: new_noise(unbroadcast(field, call.signals[value].field.shape))
            for value, field in fields.items()
        }

    return single_output(signal, back)


def _with_common_tokens(call: Call, product: Signal, weights: Operand, values: Operand) -> Signal:
    """The product of attention weights and values, with what keys of the same tokens add (see `common_tokens_gain`)."""
    logits = attention_logits(call, weights[0])
    if logits is None:
        return product
    squared = weights[1].field.ms * weights[1].field.shape[-1]
    excess = pair_excess(call, logits.keys, values[0])
    gain = common_tokens_gain(values[1].field, len(values[2]) - 2, excess, logits.variance, squared)
    return call.sources.gaussian(replace(product.field, ms=product.field.ms + gain), product.noise)


def _common_tokens_factor(call: Call, key: int) -> float:
    """What the correlation of keys and values adds to the gradient of queries (see the rule of attention)."""
    attended = attended_values(call)
    if attended is None:
        return 1.0
    logits = call.signals.get(attended.logits)
    masked = logits is not None and logits.visible_share is not None and logits.visible_share < 1
    return 1.0 if masked else 1 + (call.output.shape[-1] - 1) * pair_excess(call, key, attended.values)


def _without_ones(operand: Operand, other: Operand) -> Operand:
    """The operand with batch axes of length 1 expanded to those of the other factor."""
    value, signal, letters = operand
    size = dict(zip(other[2], other[1].field.shape, strict=True))
    shape = tuple(
        size.get(letter, own) if own == 1 else own
        for letter, own in zip(letters, signal.field.shape, strict=True)
    )
    return value, expanded(signal, shape), letters


def _inner_letters(left: int, right: int) -> tuple[str, str, str]:
    """The last axes are summed, and each row of one factor meets each row of the other."""
    rows = LETTERS[: left - 1], LETTERS[left - 1 : left + right - 2]
    return rows[0] + "y", rows[1] + "y", rows[0] + rows[1]


def _matmul_letters(left: int, right: int) -> tuple[str, str, str]:
    batch = LETTERS[: max(left, right) - 2] if max(left, right) > 2 else ""
    a = (batch[len(batch) - left + 2 :] if left > 2 else "") + ("x" if left > 1 else "") + "y"
    b = (batch[len(batch) - right + 2 :] if right > 2 else "") + "y" + ("z" if right > 1 else "")
    return a, b, batch + ("x" if left > 1 else "") + ("z" if right > 1 else "")


@moment_rule(assumes="weights are independent of the signal and of each other")
def addmm(call: Call) -> MomentMap:
    """$y = b + x W$: a linear layer with the bias as first argument."""
    names = {"addmm": ("input", "mat1", "mat2"), "addmv": ("input", "mat", "vec")}
    bias, left, right = (
        call.id(name, place)
        for place, name in enumerate(names.get(call.op.name, ("input", "batch1", "batch2")))
    )
    alpha, beta = (float(call.op.kwargs.get(name, 1)) for name in ("alpha", "beta"))
    if left is None or right is None or left not in call.signals or right not in call.signals:
        raise UnpredictableError("nothing is known about the factors")
    a, b = call.signals[left], call.signals[right]
    letters_a, letters_b, out = _matmul_letters(len(a.field.shape), len(b.field.shape))
    if beta != 1:
        raise UnpredictableError("a bias multiplied by beta")
    a = scale_signal(
        a, alpha
    )  # the product and the gradient of the other factor now contain it; the own gradient follows below
    product = contraction(call, (left, a, letters_a), (right, b, letters_b), out)
    with_bias = biased(call, product, bias, out, (left, a, letters_a), (right, b, letters_b))
    if alpha == 1:
        return with_bias

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        gradients = dict(with_bias.back(grads))
        return {**gradients, left: weighted(gradients[left], alpha)}

    return MomentMap(outputs=with_bias.outputs, back=back)


@moment_rule(assumes="all experts have weights of one second moment")
def grouped_matmul(call: Call) -> MomentMap:
    r"""$y_t = x_t W_{e(t)}$ for tokens sorted by their expert $e$: a linear layer for each token.

    The gradient of the weights of one of $E$ experts is a sum over $1/E$ of the tokens.
    """
    (value, x), (weight_id, weight) = call.read(0), call.read(1)
    if len(x.field.shape) != 2 or len(weight.field.shape) != 3:
        raise UnpredictableError("groups that are not rows")
    experts = weight.field.shape[0]
    one = rearranged(weight, lambda f: replace(f, shape=f.shape[1:], share=f.share[1:]))
    a, b = (value, x, "xy"), (weight_id, one, "yz")
    inner = biased(call, contraction(call, a, b, "xz"), None, "xz", a, b)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        gradients = dict(inner.back(grads))
        field = scaled(gradients[weight_id][0].field, experts**-0.5)
        shape, share = weight.field.shape, (field.mean**2, *field.share)
        return {**gradients, weight_id: new_noise(replace(field, shape=shape, share=share))}

    return MomentMap(outputs=inner.outputs, back=back)


@moment_rule(assumes="the two factors are independent")
def einsum(call: Call) -> MomentMap:
    """A sum of products of two factors, in the given letters."""
    equation = str(call.argument("equation", 0)).replace(" ", "")
    if "." in equation or "->" not in equation or len(call.op.inputs) != 2:
        raise UnpredictableError(f"einsum {equation!r}")
    read, out = equation.split("->")
    letters = read.split(",")
    if any(len(set(each)) < len(each) for each in letters):
        raise UnpredictableError(f"a diagonal in einsum {equation!r}")
    (left, a), (right, b) = call.read(0), call.read(1)
    return _contract(call, (left, a, letters[0]), (right, b, letters[1]), out)


@moment_rule(assumes="weights are independent of the signals and of each other")
def bilinear(call: Call) -> MomentMap:
    r"""$y_k = \sum_{ij} a_i W_{kij} b_j + c_k$: $E[y^2] = n_a n_b E[W^2]\,q_a q_b + E[c^2]$."""
    (left, a), (right, b), (_, weight) = call.read(0), call.read(1), call.read(2)
    bias = call.signal("bias", 3)
    fan = weight.field.shape[1] * weight.field.shape[2]
    ms = fan * weight.field.ms * a.field.ms * b.field.ms
    extra = 0.0 if bias is None else bias.field.ms
    rest = zip(a.field.share[:-1], b.field.share[:-1], strict=True)
    share = (*(fan * weight.field.ms * x * y + extra for x, y in rest), 0.0)
    field = RandomField(shape=call.output.shape, mean=0.0, ms=ms + extra, share=share)
    out = call.sources.gaussian(field, fluctuation(a) + fluctuation(b))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        gradients = {}
        for value, x, other in ((left, a, b), (right, b, a)):
            factor = weight.field.shape[0] * other.field.shape[-1] * weight.field.ms
            share = [factor * s * o for s, o in zip(g.share[:-1], other.field.share[:-1], strict=True)]
            ms = factor * g.ms * other.field.ms
            gradients[value] = new_noise(
                RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=(*share, 0.0))
            )
        return gradients

    return single_output(out, back)

# SPDX-License-Identifier: Apache-2.0
"""What examples/autograd.py meets in practice: each thing that does not fit is a sentence, each that does is right.

  autograd_cases.py LIBRARY    in the folder of the example
"""
import sys

import torch

sys.path.pop(0)  # the folder of this file, which has the example's name
import autograd as example

CU = [0, 5, 17, 24]
HEADS, DIM = (4, 2), 8


def refused(what, words, call):
    try:
        call()
    except RuntimeError as error:
        missing = [w for w in words if w not in str(error)]
        assert not missing, f"{what}: the sentence lacks {missing}: {error}"
        print(f"{what}: {error}")
        return
    raise AssertionError(f"{what} was accepted")


def tensors(seed):
    torch.manual_seed(seed)
    return [torch.randn(CU[-1], h, DIM, dtype=torch.float64, requires_grad=True) for h in (HEADS[0], HEADS[1], HEADS[1])]


def gradients(attention, q, k, v, out, lse, dout):
    grads = [torch.full_like(t, float("nan")) for t in (q, k, v)]
    attention.run("ffa_backward", example.init(example.BackwardArgs(), "ffa_backward_args_init"), q=q, k=k, v=v, out=out,
                  lse=lse, dout=dout, dq=grads[0], dk=grads[1], dv=grads[2])
    return grads


def forward(attention, q, k, v):
    out, lse = torch.empty_like(q), torch.empty(CU[-1], HEADS[0], dtype=torch.float64)
    attention.run("ffa_forward", example.init(example.ForwardArgs(), "ffa_forward_args_init"), q=q, k=k, v=v, out=out, lse=lse)
    return out, lse


def main():
    attention = example.Attention(torch.device("cpu"), torch.float64, *HEADS, DIM, CU)
    q, k, v = tensors(1)
    assert torch.autograd.gradcheck(attention, (q, k, v))
    q, k, v = (t.detach() for t in (q, k, v))
    out, lse = forward(attention, q, k, v)

    # An expanded gradient: rows that all tokens and heads share are right, one element for a row is refused.
    row = torch.randn(DIM, dtype=torch.float64)
    shared = gradients(attention, q, k, v, out, lse, row.expand_as(q))
    for a, b in zip(shared, gradients(attention, q, k, v, out, lse, row.expand_as(q).contiguous())):
        assert torch.equal(a, b)
    refused("expanded gradient", ["stride"], lambda: gradients(attention, q, k, v, out, lse, torch.ones((), dtype=torch.float64).expand_as(q)))
    total = attention(*(t.requires_grad_() for t in (q, k, v)))[0].sum()
    total.backward()
    for a, b in zip((q.grad, k.grad, v.grad), gradients(attention, q, k, v, out, lse, torch.ones_like(q))):
        assert torch.equal(a, b)

    # A workspace that holds anything.
    attention.workspace.fill_(255)
    again = forward(attention, q, k, v)
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])

    refused("short tensor", ["k", "23", "24"], lambda: forward(attention, q, k[:-1], v))
    refused("wrong dtype", ["v", "fp32", "fp64"], lambda: forward(attention, q, k, v.float()))
    refused("wrong heads", ["q", "heads"], lambda: forward(attention, q[:, :2], k, v))
    refused("an output that is expanded", ["dq"], lambda: attention.run(
        "ffa_backward", example.init(example.BackwardArgs(), "ffa_backward_args_init"), q=q, k=k, v=v, out=out, lse=lse,
        dout=torch.ones_like(q), dq=row.expand_as(q), dk=torch.empty_like(k), dv=torch.empty_like(v)))

    # What would be silently wrong: rows that no call writes, and a second derivative.
    longer = torch.cat((q, q[:1])).detach()
    refused("a longer tensor", ["q", "25", "24"], lambda: attention(longer, k, v))
    x = q.detach().requires_grad_()
    first, = torch.autograd.grad(attention(x, k.detach(), v.detach())[0].square().sum(), x, create_graph=True)
    refused("a second derivative", ["once_differentiable"], lambda: first.square().sum().backward())


if __name__ == "__main__":
    main()
    print("passed")

"""PyTorch's operations at the shapes of the CUDA benchmarks: milliseconds of a call, eager and in a CUDA graph.

    python3 peer_ops.py [--json FILE]      needs torch with CUDA; KDA needs the package flash-linear-attention

One JSON object a line: {"name", "ms"}. What cannot run is named with its reason.
"""

import argparse
import json

import torch
import torch.nn.functional as F

B, T, H = 16, 2048, 5  # k3_300m at 32,768 tokens


def median_ms(run, repeats=30):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return sorted(times)[len(times) // 2]


def in_graph(run):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def inputs(*shape, scale=1.0):
    return (scale * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)).requires_grad_()


def forward_and_backward(call, arguments):
    """The call alone, and the call with the gradients of its arguments from a gradient of its result."""
    gradient = torch.randn_like(call(*arguments))

    def both():
        return torch.autograd.grad(call(*arguments), arguments, gradient)

    def forward():
        with torch.no_grad():
            return call(*arguments)

    return forward, both


def kda():
    from fla.ops.kda import chunk_kda

    A_log = torch.zeros(H, device="cuda")
    dt_bias = torch.zeros(H * 128, device="cuda")

    def call(q, k, v, g, beta):
        return chunk_kda(q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, use_qk_l2norm_in_kernel=True,
                         use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True, lower_bound=-5.0)[0]

    return call, [*(inputs(B, T, H, 128) for _ in range(4)), inputs(B, T, H)]


def attention():
    def call(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return call, [inputs(B, H, T, 192), inputs(B, H, T, 192), inputs(B, H, T, 128)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="file for one JSON object a line")
    out = parser.parse_args().json
    file = open(out, "w") if out else None
    for name, make in (("causal attention of PyTorch", attention), ("KDA of FLA", kda)):
        try:
            forward, both = forward_and_backward(*make())
            for part, run in (("forward", forward), ("forward + backward", both)):
                for way, call in (("eager", lambda: run), ("in a graph", lambda: in_graph(run))):
                    line = {"name": f"{name}, {part}, {way}", "ms": median_ms(call())}
                    print(f"{line['name']:<60} {line['ms']:9.4f} ms", flush=True)
                    if file:
                        print(json.dumps(line), file=file, flush=True)
        except Exception as error:  # a package or a kernel that is not there is not a failure of ours
            print(f"{name}: not measured: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    main()

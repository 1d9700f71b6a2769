"""D2L's experiments in plain PyTorch, one process of `beside_pytorch.py`: prints medians as JSON.

The experiments run on a GPU if there is one, and then those that need a GPU run as well. On a CPU
PyTorch computes inside each call, and `torch.cpu.synchronize` does nothing.
"""

import itertools

import torch
from peers import BATCH, LAYERS, RATE, STEPS, go_on, report


def drawing_and_squaring(size, device):
    for _ in range(10):
        x = torch.randn(size, size, device=device)
        torch.mm(x, x)


def increments(x, wait):
    for _ in range(1000):
        x = x + 1
        wait()


def network(device):
    """Return a network with the sizes of `LAYERS`."""
    layers = []
    for fan_in, fan_out in itertools.pairwise(LAYERS):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(device)


def train_step(model, optimizer, x, y):
    """Take a step of gradient descent on half the mean squared error."""
    loss = torch.nn.functional.mse_loss(model(x), y) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def training(steps, device, wait, step=train_step):
    """Return a function that trains on random minibatches, with `wait` after each."""
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def run():
        y = torch.ones(BATCH, 1, device=device)
        for _ in range(steps):
            step(model, optimizer, torch.randn(BATCH, LAYERS[0], device=device), y)
            wait()

    return run


def on_one_device(steps, device, wait):
    matrix, ones = torch.randn(1000, 1000, device=device), torch.ones(1, 2, device=device)
    return {
        "ten random products of 1000": lambda: drawing_and_squaring(1000, device),
        "one product of 1000": lambda: torch.mm(matrix, matrix),
        "one draw of 1000 x 1000": lambda: torch.randn(1000, 1000, device=device),
        "a thousand increments, a barrier in each": lambda: increments(ones, wait),
        "a thousand increments, call by call": lambda: increments(ones, go_on),
        "training, a barrier in each step": training(steps, device, wait),
        "training": training(steps, device, go_on),
    }


def captured_increments(device):
    """Return the replay of a CUDA graph of a thousand increments."""
    x, stream, graph = torch.ones(1, 2, device=device), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # CUDA asks for a first run on another stream.
        increments(x, go_on)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        increments(x, go_on)
    return graph.replay


def products(x, count):
    return [torch.mm(x, x) for _ in range(count)]


def copy_all(results, buffers):
    """Copy each result into its buffer of pinned memory, on the stream that computed it."""
    for result, buffer in zip(results, buffers, strict=True):
        buffer.copy_(result, non_blocking=True)


def copy_each(x, buffers, stream):
    """Copy each product on a stream of its own, right after its computation."""
    results = []
    for buffer in buffers:
        results.append(torch.mm(x, x))
        done = torch.cuda.Event()
        done.record()
        with torch.cuda.stream(stream):
            stream.wait_event(done)
            buffer.copy_(results[-1], non_blocking=True)
    return results  # Keep them until the wait: the other stream still reads their memory.


def beside_a_gpu(steps, gpu, wait, small=2000, large=6000, copied=4000, count=50):
    on_cpu, on_gpu = torch.randn(small, small), torch.randn(large, large, device=gpu)
    x = torch.randn(copied, copied, device=gpu)
    computed, stream = products(x, count), torch.cuda.Stream()
    buffers = [torch.empty(copied, copied, pin_memory=True) for _ in range(count)]
    compiled = torch.compile(train_step, mode="reduce-overhead")
    return {
        "ten random products of 4000": lambda: drawing_and_squaring(4000, gpu),
        "a thousand increments, CUDA graph": captured_increments(gpu),
        "ten products of 2000 on the CPU": lambda: products(on_cpu, 10),
        "ten products of 6000 on the GPU": lambda: products(on_gpu, 10),
        "both, GPU asked first": lambda: (products(on_gpu, 10), products(on_cpu, 10)),
        "both, CPU asked first": lambda: (products(on_cpu, 10), products(on_gpu, 10)),
        "fifty products": lambda: products(x, count),
        "copying them to pageable memory": lambda: [y.to("cpu") for y in computed],
        "copying them to pinned memory": lambda: copy_all(computed, buffers),
        # D2L copies this way. PyTorch chooses the memory, and takes pinned memory.
        "copying them with non_blocking=True": lambda: [
            y.to("cpu", non_blocking=True) for y in computed
        ],
        "fifty products, then fifty copies": lambda: copy_all(products(x, count), buffers),
        "each copy behind its product": lambda: copy_each(x, buffers, stream),
        "training, torch.compile": training(steps, gpu, go_on, compiled),
    }


if __name__ == "__main__":
    gpu = torch.cuda.is_available()
    device, wait = ("cuda", torch.cuda.synchronize) if gpu else ("cpu", torch.cpu.synchronize)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU that has it, the default of XLA.
    steps = STEPS["gpu" if gpu else "cpu"]
    work = on_one_device(steps, device, wait)
    if gpu:
        work |= beside_a_gpu(steps, device, wait)
    report(torch.__version__, steps, work, lambda _: wait())

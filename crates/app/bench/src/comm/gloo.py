# A rank of torch.distributed with Gloo, told what to measure over a socket.
import os, socket, sys, time
import torch
import torch.distributed as dist

TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
         "i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

torch.set_num_threads(1)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
link.connect(sys.argv[1])


def tell(line):
    link.sendall((line + "\n").encode())


def pattern(of, first, count, dtype):
    modulus = 11 if ranks <= 12 else 2
    return ((torch.arange(first, first + count) * 7 + of * 5) % modulus).to(dtype)


def prepare(name, dtype, count):
    """The call, its input, its result and what the result must be."""
    whole = count * ranks
    zeros = lambda n: torch.zeros(n, dtype=dtype)
    total = lambda first, n: sum(pattern(r, first, n, dtype) for r in range(ranks))
    nxt, previous = (rank + 1) % ranks, (rank - 1) % ranks
    if name == "all_reduce":
        a = zeros(count)
        return (lambda: dist.all_reduce(a)), a, a, lambda: total(0, count)
    if name == "broadcast":
        a = zeros(count)
        return (lambda: dist.broadcast(a, 0)), a, a, lambda: pattern(0, 0, count, dtype)
    if name == "all_gather":
        a, b = zeros(count), zeros(whole)
        want = lambda: torch.cat([pattern(r, 0, count, dtype) for r in range(ranks)])
        return (lambda: dist.all_gather_into_tensor(b, a)), a, b, want
    if name == "reduce_scatter":
        a, b = zeros(whole), zeros(count)
        return (lambda: dist.reduce_scatter_tensor(b, a)), a, b, lambda: total(rank * count, count)
    if name == "all_to_all":
        a, b = zeros(whole), zeros(whole)
        want = lambda: torch.cat([pattern(r, rank * count, count, dtype) for r in range(ranks)])
        return (lambda: dist.all_to_all_single(b, a)), a, b, want
    if name == "reduce":
        # In place: what lies at the other ranks afterwards is undefined.
        a = zeros(count)
        return (lambda: dist.reduce(a, 0)), a, (a if rank == 0 else None), lambda: total(0, count)
    if name == "gather":
        a, b = zeros(count), (zeros(whole) if rank == 0 else None)
        parts = list(b.chunk(ranks)) if rank == 0 else None
        want = lambda: torch.cat([pattern(r, 0, count, dtype) for r in range(ranks)])
        return (lambda: dist.gather(a, parts, 0)), a, b, want
    if name == "scatter":
        a, b = (zeros(whole) if rank == 0 else None), zeros(count)
        parts = list(a.chunk(ranks)) if rank == 0 else None
        return (lambda: dist.scatter(b, parts, 0)), a, b, lambda: pattern(0, rank * count, count, dtype)
    if name == "exchange":
        a, b = zeros(count), zeros(count)

        def exchange():
            sent = dist.isend(a, nxt)
            dist.recv(b, previous)
            sent.wait()

        return exchange, a, b, lambda: pattern(previous, 0, count, dtype)
    raise ValueError("no operation " + name)


def measure(name, numbers, size, warmup, samples, calls):
    if numbers not in TYPES:
        return "no type " + numbers
    dtype = TYPES[numbers]
    count = int(size) // dtype.itemsize
    count = count // ranks if name in PARTS else count
    call, given, result, want = prepare(name, dtype, count)
    for _ in range(int(warmup)):
        call()
    times = []
    for _ in range(int(samples)):
        dist.barrier()
        began = time.perf_counter_ns()
        for _ in range(int(calls)):
            call()
        times.append((time.perf_counter_ns() - began) // int(calls))
    if given is not None:
        given.copy_(pattern(rank, 0, given.numel(), dtype))
    call()
    wrong = 0 if result is None else int((result != want().to(dtype)).sum())
    dist.barrier()
    return " ".join(["ok", "gloo", str(wrong)] + [str(t) for t in times])


tell("rank %d %d" % (rank, os.getpid()))
dist.init_process_group("gloo")
dist.barrier()
tell("ready")
for line in link.makefile():
    words = line.split()
    try:
        answer = measure(*words[1:])
    except Exception as error:
        answer = "no " + " ".join(str(error).split())[:200]
    tell(answer)

# Times PyTorch's products on the shapes of `bedplate bench machine`: arguments are the number of threads and then
# FORMAT:ROWS:OUTPUTS:INPUTS; prints a line for each of the three products of a linear layer, with the
# seconds that three of four repetitions exceed.
import sys
import time

import torch

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SPAN = 0.3


def seconds(work):
    work()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < SPAN:
        at = time.perf_counter()
        work()
        times.append(time.perf_counter() - at)
    return sorted(times)[len(times) // 4]


torch.set_num_threads(int(sys.argv[1]))
with torch.no_grad():
    for shape in sys.argv[2:]:
        name, rows, outputs, inputs = shape.split(":")
        rows, outputs, inputs = int(rows), int(outputs), int(inputs)
        x = torch.randn(rows, inputs).to(FORMATS[name])
        weight = torch.randn(outputs, inputs).to(FORMATS[name])
        d_out = torch.randn(rows, outputs).to(FORMATS[name])
        products = {
            "products": lambda: torch.nn.functional.linear(x, weight),
            "input_gradients": lambda: d_out @ weight,
            "weight_gradients": lambda: d_out.t() @ x,
        }
        for operator, work in products.items():
            print(operator, name, rows, outputs, inputs, seconds(work))
print("done", torch.__version__)

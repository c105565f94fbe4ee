# Measures calculon from a checkout of its repository (the current folder): its own search over shuffled
# parts of the space of gpt3-175B on 512 A100s, for about ten seconds of CPU time, on one core.
import random
import sys
import time

sys.path.insert(0, ".")

import calculon
from calculon.llm import Llm, System
from calculon.llm.optimal_execution import OptimalExecution

GPUS, BATCH = 512, 512
app = Llm.Application(calculon.io.read_json_file("models/gpt3-175B.json"))
system = System(calculon.io.read_json_file("systems/a100_80g.json"))

parts = []
for tp in Llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
    for pp in Llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
        dp = Llm.get_data_parallelism(GPUS, tp, pp)
        batch = OptimalExecution.get_batch_size(dp, BATCH)
        if batch is None:
            continue
        for interleave in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
            for recompute in ("full", "attn_only", "none"):
                for sharding in ((True, False) if dp > 1 else (False,)):
                    for comm in ("ar", "p2p_rs_ag", "rs_ag"):
                        parts.append((tp, pp, dp, interleave, batch, recompute, sharding, comm))

random.Random(7).shuffle(parts)
priced, begin = 0, time.process_time()
for tp, pp, dp, interleave, batch, recompute, sharding, comm in parts:
    found = OptimalExecution.search(
        False, 1, False, GPUS, BATCH, "float16", app, system, tp, pp, dp, interleave, batch, recompute,
        sharding, comm, [True], True, True, True,
    )
    priced += found[1]
    if time.process_time() - begin > 10:
        break
print("layouts_per_cpu_s", priced / (time.process_time() - begin))

"""Attention by PyTorch's scaled_dot_product_attention (flash, cuDNN) on the shapes of cuda_attention_bench:
32 query heads, 8 KV heads, d 128, bf16; calls back to back in a CUDA graph over different memory, median of replays.

    python3 bench/competitors/torch_sdpa.py [--batch 1,8,64] [--tokens 8192,32768,131072] [--pool GIB] [--prefill ROWS]
                                           [--add FILE]

--prefill measures the last rows of a prompt in place of decoding. Where there are tokens before them, every row sees
all tokens, for these kernels have no mask that ends behind a row: with 2,048 rows 14 % more work than ours at 8K, 3 % at 32K.

--add puts the times as rows into the file of results that `cuda_attention_bench --json FILE` wrote on the same machine.
"""
import argparse
import json
import pathlib
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

QUERY_HEADS, KV_HEADS, DIM = 32, 8, 128
TORCH = "torch", f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


def seconds_of_a_call(work, layers):
    """Median over replays of a graph of all layers."""
    calls = max(layers, 8)
    for layer in range(min(layers, 3)):
        work(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            work(call % layers)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    while len(times) < 4 or (sum(times) < 0.4 and len(times) < 30):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times) / calls


def measure_prefill(lengths, count):
    """Rows of results of `count` rows of one prompt, for each of its lengths."""
    rows = []
    for tokens in lengths:
        asked = min(count, tokens)
        layers = min(8, max(1, 2**31 // (KV_HEADS * tokens * DIM * 4)))
        q = torch.randn(1, QUERY_HEADS, asked, DIM, dtype=torch.bfloat16, device="cuda")
        keys, values = (torch.randn(layers, 1, KV_HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda")
                        for _ in range(2))
        causal = asked == tokens
        products = asked * (tokens + 1) / 2 if causal else asked * tokens
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            def work(layer):
                torch.nn.functional.scaled_dot_product_attention(q, keys[layer], values[layer], is_causal=causal,
                                                                 enable_gqa=True)
            with sdpa_kernel(backend):
                seconds = seconds_of_a_call(work, layers)
            rate = 4 * DIM * QUERY_HEADS * products / seconds * 1e-12
            rows.append({"batch": 1, "tokens": tokens, "what": f"torch {name} prefill", "rows": asked,
                         "us": round(seconds * 1e6, 2), "tflops": round(rate, 1)})
            print(f"  1 {tokens:7} {f'{name} prefill {asked}':<26} {seconds * 1e6:10.2f} {rate:8.1f} TFLOP/s", flush=True)
    return rows


def add_rows(path, rows, name, version):
    """Puts rows and the version into a file of results, a line for each field of the head and for each row."""
    file = json.loads(path.read_text())
    file["settings"][name] = version
    file["rows"] = [row for row in file["rows"] if row["what"].split()[0] != name] + rows
    head = "".join(f' {json.dumps(key)}: {json.dumps(value)},\n' for key, value in file.items() if key != "rows")
    lines = ",\n".join("  " + json.dumps(row) for row in file["rows"])
    path.write_text("{\n" + head + ' "rows": [\n' + lines + "\n ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--tokens", default="8192,32768,131072")
    parser.add_argument("--pool", type=float, default=34, help="GiB of K and V that the layers are cut from")
    parser.add_argument("--prefill", metavar="ROWS", help="measure so many rows of a prompt, such as 64,2048")
    parser.add_argument("--add", type=pathlib.Path, metavar="FILE", help="results of cuda_attention_bench to add to")
    arguments = parser.parse_args()
    rows = []
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    lengths = [int(tokens) for tokens in arguments.tokens.split(",")]
    if arguments.prefill:
        for count in map(int, arguments.prefill.split(",")):
            rows += measure_prefill(lengths, count)
        if arguments.add:
            add_rows(arguments.add, rows, *TORCH)
        return
    pool = int(arguments.pool * 2**30) // 4
    k_pool = torch.randn(pool // 8, dtype=torch.bfloat16, device="cuda").repeat(8)
    v_pool = torch.randn(pool // 8, dtype=torch.bfloat16, device="cuda").repeat(8)
    for tokens in lengths:
        for batch in map(int, arguments.batch.split(",")):
            shape = (batch, KV_HEADS, tokens, DIM)
            each = batch * KV_HEADS * tokens * DIM
            layers = min(pool // each, 32)
            if layers == 0:
                continue
            q = torch.randn(batch, QUERY_HEADS, 1, DIM, dtype=torch.bfloat16, device="cuda")
            keys = [k_pool[i * each:(i + 1) * each].view(shape) for i in range(layers)]
            values = [v_pool[i * each:(i + 1) * each].view(shape) for i in range(layers)]
            for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
                def work(layer):
                    torch.nn.functional.scaled_dot_product_attention(q, keys[layer], values[layer], enable_gqa=True)
                try:
                    with sdpa_kernel(backend):
                        seconds = seconds_of_a_call(work, layers)
                    rows.append({"batch": batch, "tokens": tokens, "what": f"torch {name}",
                                 "us": round(seconds * 1e6, 2)})
                    print(f"{batch:3} {tokens:7} {name:<26} {seconds * 1e6:10.2f}", flush=True)
                except RuntimeError as error:
                    print(f"{batch:3} {tokens:7} {name:<26} failed: {str(error).splitlines()[0][:80]}", flush=True)
    if arguments.add:
        add_rows(arguments.add, rows, *TORCH)


if __name__ == "__main__":
    main()

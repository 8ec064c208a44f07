"""Decoding by FlashInfer's BatchDecodeWithPagedKVCacheWrapper on the shapes of cuda_attention_bench: 32 query heads,
8 KV heads, d 128, bf16, pages of 16; calls back to back in a CUDA graph over different memory, median of replays.

    python3 bench/competitors/flashinfer_paged.py [--batch 1,8,64] [--tokens 8192,32768,131072] [--pool GIB] [--add FILE]

Needs the packages torch and flashinfer-python, and nvcc: the kernels are compiled when they are first asked for. Both of
its kernels are measured, on tensor cores and without, planned for a CUDA graph and not, and the fastest counts. The
answer is compared with torch's before anything is measured.

--add puts the times as rows into the file of results that `cuda_attention_bench --json FILE` wrote on the same machine.
"""
import argparse
import pathlib

import flashinfer
import torch
from torch_sdpa import DIM, KV_HEADS, QUERY_HEADS, add_rows, seconds_of_a_call

PAGE = 16


def wrapper_of(batch, tokens, tensor_cores, for_graph):
    """A planned wrapper for so many sequences of so many tokens, whose pages lie in order."""
    pages = (tokens + PAGE - 1) // PAGE
    indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    indices = torch.arange(batch * pages, dtype=torch.int32, device="cuda")
    last = torch.full((batch,), (tokens - 1) % PAGE + 1, dtype=torch.int32, device="cuda")
    buffers = {"paged_kv_indptr_buffer": indptr.clone(), "paged_kv_indices_buffer": indices.clone(),
               "paged_kv_last_page_len_buffer": last.clone()} if for_graph else {}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(512 * 2**20, dtype=torch.uint8, device="cuda"), "HND", use_cuda_graph=for_graph,
        use_tensor_cores=tensor_cores, **buffers)
    wrapper.plan(indptr, indices, last, QUERY_HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.bfloat16,
                 kv_data_type=torch.bfloat16)
    return wrapper


def check_answer(tensor_cores, for_graph):
    batch, tokens = 3, 300
    pages = (tokens + PAGE - 1) // PAGE
    q = torch.randn(batch, QUERY_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(batch * pages, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    got = wrapper_of(batch, tokens, tensor_cores, for_graph).run(q, (k, v)).float()
    keys, values = (pool.view(batch, pages, KV_HEADS, PAGE, DIM).transpose(1, 2).reshape(batch, KV_HEADS, -1, DIM)
                    [:, :, :tokens].float().repeat_interleave(QUERY_HEADS // KV_HEADS, 1) for pool in (k, v))
    scores = torch.einsum("bhd,bhtd->bht", q.float(), keys) / DIM**0.5
    want = torch.einsum("bht,bhtd->bhd", scores.softmax(-1), values)
    apart = (got - want).abs().max().item()
    if apart > 0.02:
        raise SystemExit(f"error: FlashInfer's answer is {apart:.3f} from torch's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--tokens", default="8192,32768,131072")
    parser.add_argument("--pool", type=float, default=34, help="GiB of K and V that the layers are cut from")
    parser.add_argument("--add", type=pathlib.Path, metavar="FILE", help="results of cuda_attention_bench to add to")
    arguments = parser.parse_args()
    print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    ways = [(tensor_cores, for_graph) for tensor_cores in (True, False) for for_graph in (True, False)]
    for way in ways:
        check_answer(*way)
    rows = []
    pool = int(arguments.pool * 2**30) // 4
    k_pool, v_pool = (torch.randn(pool // 8, dtype=torch.bfloat16, device="cuda").repeat(8) for _ in range(2))
    for tokens in map(int, arguments.tokens.split(",")):
        for batch in map(int, arguments.batch.split(",")):
            each = batch * KV_HEADS * tokens * DIM
            layers = min(pool // each, 32)
            if layers == 0:
                continue
            shape = (batch * tokens // PAGE, KV_HEADS, PAGE, DIM)
            q = torch.randn(batch, QUERY_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
            out = torch.empty_like(q)
            keys = [k_pool[i * each:(i + 1) * each].view(shape) for i in range(layers)]
            values = [v_pool[i * each:(i + 1) * each].view(shape) for i in range(layers)]
            best = None
            for tensor_cores, for_graph in ways:
                name = ("tensor cores" if tensor_cores else "CUDA cores") + (", for a graph" if for_graph else "")
                wrapper = wrapper_of(batch, tokens, tensor_cores, for_graph)
                seconds = seconds_of_a_call(lambda layer: wrapper.run(q, (keys[layer], values[layer]), out=out), layers)
                print(f"{batch:3} {tokens:7} {name:<26} {seconds * 1e6:10.2f}", flush=True)
                best = seconds if best is None else min(best, seconds)
            rows.append({"batch": batch, "tokens": tokens, "what": "flashinfer", "us": round(best * 1e6, 2)})
    if arguments.add:
        add_rows(arguments.add, rows, "flashinfer", flashinfer.__version__)


if __name__ == "__main__":
    main()

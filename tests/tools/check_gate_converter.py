"""Converts small made gates, published as a .pth and as safetensors, and reads the GGUF back: the same numbers under the
keys of docs/gates.md. Then weights and configurations that must be refused.

    $(scripts/python-env) tests/tools/check_gate_converter.py scripts/convert-seer-gates.py
"""
import collections
import io
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import types
import zipfile

import gguf
import numpy as np

LAYERS, HEADS, KV_HEADS, WIDTH, DIM = 2, 4, 2, 16, 24
CONFIG = {"model_type": "qwen3", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "hidden_size": 64, "head_dim": WIDTH, "rope_theta": 1000000.0, "seerattn_gate_hidden_size": DIM,
          "seerattn_gate_block_size": 64, "seerattn_use_qk_norm": True, "seerattn_k_seq_pooling_type": "Kmaxminavg",
          "seerattn_q_head_pooling_type": "Qproj"}
random = np.random.default_rng(5)


def halves(shape):
    """bf16 as its upper 16 bits."""
    return (random.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2")


def made():
    weights = {}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}.self_attn.attn_gate."
        weights[start + "attngate_linear_q.weight"] = halves((KV_HEADS, HEADS // KV_HEADS, WIDTH, DIM))
        weights[start + "attngate_linear_k.weight"] = halves((KV_HEADS, 3 * WIDTH, DIM))
        weights[start + "attngate_qnorm.weight"] = halves((DIM,))
        weights[start + "attngate_knorm.weight"] = halves((DIM,))
    return weights


# What PyTorch's pickles name, so that a pickle can be written without it.
torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules |= {"torch": torch, "torch._utils": utils}


class BFloat16Storage:
    pass


def _rebuild_tensor_v2(*arguments):
    raise NotImplementedError


for owner, item in ((torch, BFloat16Storage), (utils, _rebuild_tensor_v2)):
    item.__module__ = owner.__name__
    setattr(owner, item.__name__, item)


class Storage:
    def __init__(self, name, values):
        self.name, self.values = name, values


class Saved:
    def __init__(self, storage):
        self.storage = storage

    def __reduce__(self):
        shape = self.storage.values.shape
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        return _rebuild_tensor_v2, (self.storage, 0, shape, strides, False, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, item):
        if isinstance(item, Storage):
            return "storage", BFloat16Storage, item.name, "cpu", item.values.size
        return None


def save_pth(folder, weights, extra=None):
    storages = [Storage(str(i), values) for i, values in enumerate(weights.values())]
    saved = collections.OrderedDict((name, Saved(storage)) for name, storage in zip(weights, storages))
    saved.update(extra or {})
    stream = io.BytesIO()
    Pickler(stream, 2).dump(saved)
    with zipfile.ZipFile(folder / "attn_gate_weights.pth", "w") as archive:
        archive.writestr("gates/data.pkl", stream.getvalue())
        for storage in storages:
            archive.writestr(f"gates/data/{storage.name}", storage.values.tobytes())


def save_safetensors(folder, weights):
    header, data = {}, b""
    for name, values in weights.items():
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "gates.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def convert(script, config, save):
    with tempfile.TemporaryDirectory() as name:
        folder, out = pathlib.Path(name), pathlib.Path(name) / "out.gguf"
        (folder / "config.json").write_text(json.dumps(config))
        save(folder)
        run = subprocess.run([sys.executable, script, folder, out], capture_output=True, text=True)
        if run.returncode != 0:
            return None, run.stderr
        reader = gguf.GGUFReader(out)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {t.name: (t.tensor_type, [int(n) for n in t.shape], bytes(np.ascontiguousarray(t.data))) for t in reader.tensors}
        return fields, tensors


def check(what, truth):
    if not truth:
        sys.exit(f"error: {what}")


def expect_converted(script, weights, save):
    fields, tensors = convert(script, CONFIG, save)
    check(f"it was refused: {tensors}", fields is not None)
    expected = {"general.architecture": "seer-gates", "seer-gates.version": 1, "seer-gates.model_architecture": "qwen3",
                "seer-gates.block_count": LAYERS, "seer-gates.head_count": HEADS, "seer-gates.head_count_kv": KV_HEADS,
                "seer-gates.key_length": WIDTH, "seer-gates.gate_length": DIM, "seer-gates.block_size": 64,
                "seer-gates.rope_dimension_count": WIDTH, "seer-gates.rope_freq_base": 1000000.0}
    for key, value in expected.items():
        check(f"{key} is {fields.get(key)}", fields.get(key) == value)
    check("norm_epsilon", abs(fields["seer-gates.norm_epsilon"] - 1e-6) < 1e-12)
    shapes = {"q": [DIM, WIDTH, HEADS // KV_HEADS, KV_HEADS], "k": [DIM, WIDTH, 3, KV_HEADS], "q_norm": [DIM], "k_norm": [DIM]}
    names = {"q": "attngate_linear_q", "k": "attngate_linear_k", "q_norm": "attngate_qnorm", "k_norm": "attngate_knorm"}
    check("tensors", len(tensors) == LAYERS * len(shapes))
    for layer in range(LAYERS):
        for part, shape in shapes.items():
            kind, found, data = tensors[f"blk.{layer}.attn_gate_{part}.weight"]
            source = weights[f"model.layers.{layer}.self_attn.attn_gate.{names[part]}.weight"]
            check(f"{part}: {kind}, {found}", kind == gguf.GGMLQuantizationType.BF16 and found == shape)
            check(f"{part} has other numbers", data == source.tobytes())


def expect_refused(script, config, save, words):
    fields, text = convert(script, config, save)
    check(f"not refused by '{words}': {text}", fields is None and words in text and "Traceback" not in text)


def main():
    script = sys.argv[1]
    weights = made()
    pth = lambda folder: save_pth(folder, weights)  # noqa: E731
    expect_converted(script, weights, pth)
    expect_converted(script, weights, lambda folder: save_safetensors(folder, weights))
    expect_refused(script, CONFIG | {"model_type": "llama"}, pth, "qwen2 and qwen3")
    expect_refused(script, CONFIG | {"seerattn_k_seq_pooling_type": "Kmaxmin"}, pth, "Kmaxminavg")
    expect_refused(script, CONFIG | {"seerattn_q_head_pooling_type": "Qavgproj"}, pth, "Qproj")
    expect_refused(script, CONFIG | {"num_hidden_layers": 3}, pth, "layer 2 has no q")
    expect_refused(script, CONFIG | {"num_hidden_layers": 1}, pth, "no place for")
    expect_refused(script, CONFIG | {"seerattn_gate_hidden_size": 32}, pth, "config.json makes it")
    expect_refused(script, CONFIG | {"seerattn_gate_hidden_size": 8}, pth, "narrower")
    expect_refused(script, CONFIG | {"seerattn_use_qk_norm": False}, pth, "do not agree")
    expect_refused(script, CONFIG, lambda folder: None, "neither")
    expect_refused(script, CONFIG, lambda folder: (folder / "attn_gate_weights.pth").write_bytes(b"no zip"), "zip")
    expect_refused(script, CONFIG, lambda folder: save_pth(folder, weights, {"x": print}), "print, which is no tensor")


if __name__ == "__main__":
    main()

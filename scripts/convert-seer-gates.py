"""Turns published gates of SeerAttention-R into the GGUF that `--attn-opt gates=FILE` takes (docs/gates.md).

    $(scripts/python-env) scripts/convert-seer-gates.py FOLDER OUT.gguf

FOLDER holds config.json and the weights, attn_gate_weights.pth or *.safetensors, as their authors publish them. A .pth is
read without PyTorch, by an unpickler that knows tensors and nothing else. Values keep their type.
"""
import collections
import json
import pathlib
import pickle
import re
import sys
import zipfile

sys.dont_write_bytecode = True
import one_line  # noqa: E402

one_line.need("gguf", "numpy")
import gguf  # noqa: E402
import numpy as np  # noqa: E402

NAME = "seer-gates"
VERSION = 1
NORM_EPSILON = 1e-6  # fixed in the authors' AttnGate
TYPES = {
    "BF16": (np.dtype("<u2"), gguf.GGMLQuantizationType.BF16),
    "F16": (np.dtype("<f2"), gguf.GGMLQuantizationType.F16),
    "F32": (np.dtype("<f4"), gguf.GGMLQuantizationType.F32),
}
STORAGES = {"BFloat16Storage": "BF16", "HalfStorage": "F16", "FloatStorage": "F32"}
PARTS = {"attngate_linear_q": "q", "attngate_linear_k": "k", "attngate_qnorm": "q_norm", "attngate_knorm": "k_norm"}
WEIGHT = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn\.attn_gate\.(\w+)\.weight$")

Tensor = collections.namedtuple("Tensor", "kind values")


class TensorUnpickler(pickle.Unpickler):
    """Pickles of PyTorch's zip format: tensors, parameters and ordered dictionaries; any other name is refused."""

    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *rest: tensor
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no tensor")

    def persistent_load(self, key):
        word, kind, name, _, count = key
        if word != "storage" or kind not in TYPES:
            raise pickle.UnpicklingError(f"it holds a {word} of {kind}")
        values = np.frombuffer(self.archive.read(f"{self.root}/data/{name}"), TYPES[kind][0])
        if len(values) < count:
            raise pickle.UnpicklingError(f"storage {name} is cut short")
        return Tensor(kind, values)

    @staticmethod
    def tensor(storage, offset, shape, stride, *_):
        size = storage.values.itemsize
        extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        if min(shape, default=1) < 1 or offset < 0 or min(stride, default=0) < 0 or extent > len(storage.values):
            raise pickle.UnpicklingError("a tensor lies outside its storage")
        view = np.lib.stride_tricks.as_strided(storage.values[offset:], shape, [s * size for s in stride])
        return Tensor(storage.kind, np.ascontiguousarray(view))


def read_pth(path):
    try:
        with zipfile.ZipFile(path) as archive:
            roots = [name[: -len("/data.pkl")] for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(roots) != 1:
                one_line.fail(f"{path}: no PyTorch archive of one pickle")
            return dict(TensorUnpickler(archive, roots[0]).load())
    except OSError:
        raise
    except Exception as error:  # a pickle can fail in every way that its bytes can spell
        one_line.fail(f"{path}: {error}")


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        one_line.fail(f"{path}: its header is longer than the file")
    tensors = {}
    try:
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__" or entry["dtype"] not in TYPES:
                continue
            first, last = entry["data_offsets"]
            values = np.frombuffer(data[8 + length + first : 8 + length + last], TYPES[entry["dtype"]][0])
            tensors[name] = Tensor(entry["dtype"], values.reshape(entry["shape"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        one_line.fail(f"{path}: not a safetensors file, or damaged: {error}")
    return tensors


def read_weights(folder):
    pth = folder / "attn_gate_weights.pth"
    if pth.exists():
        return read_pth(pth)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        one_line.fail(f"{folder} has neither attn_gate_weights.pth nor *.safetensors")
    tensors = {}
    for file in files:
        tensors.update(read_safetensors(file))
    return tensors


def read_config(folder):
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        one_line.fail(f"{folder / 'config.json'}: {error}")
    if not isinstance(config, dict):
        one_line.fail(f"{folder / 'config.json'}: no JSON object")
    for key in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_size"):
        if not isinstance(config.get(key), int) or config[key] < 1:
            one_line.fail(f"{folder / 'config.json'}: {key} is {config.get(key)!r}; it must be a whole number from 1 on")
    if config.get("model_type") not in ("qwen2", "qwen3"):
        # A llama GGUF has the rows of q and k in another order than the weights that the gates were trained with.
        one_line.fail(f"a model of type {config.get('model_type')!r}; gates for decoding exist for qwen2 and qwen3")
    wanted = {"seerattn_k_seq_pooling_type": "Kmaxminavg", "seerattn_q_head_pooling_type": "Qproj"}
    for key, value in wanted.items():
        if config.get(key, value) != value:
            one_line.fail(f"config.json: {key} is {config[key]!r}; only {value!r} is known")
    return config


def shape_of(config):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    dim = config.get("seerattn_gate_hidden_size", 128)
    # Where the model names its head size, the authors' gate rotates that many dimensions, else its own width.
    rotated = config.get("head_dim") or dim
    if config.get("seerattn_use_rope", True) and rotated > dim:
        one_line.fail(f"the gate of {dim} dimensions is narrower than the {rotated} that it rotates")
    return {
        "block_count": config["num_hidden_layers"],
        "head_count": heads,
        "head_count_kv": kv_heads,
        "key_length": head_dim,
        "gate_length": dim,
        "block_size": config.get("seerattn_gate_block_size", 64),
        "rope_dimension_count": rotated if config.get("seerattn_use_rope", True) else 0,
    }


def gate_tensors(weights, shape):
    """(name in the GGUF, tensor) in order; every gate of every layer, of its shape."""
    found = {}
    for name, tensor in weights.items():
        match = WEIGHT.search(name)
        if match and match[2] in PARTS:
            found[int(match[1]), PARTS[match[2]]] = tensor
    group, dim, width = shape["head_count"] // shape["head_count_kv"], shape["gate_length"], shape["key_length"]
    normed = (0, "q_norm") in found
    expected = {"q": (shape["head_count_kv"], group, width, dim), "k": (shape["head_count_kv"], 3 * width, dim)}
    if normed:
        expected |= {"q_norm": (dim,), "k_norm": (dim,)}
    for layer in range(shape["block_count"]):
        for part, of in expected.items():
            tensor = found.pop((layer, part), None)
            if tensor is None:
                one_line.fail(f"layer {layer} has no {part}")
            if tensor.values.shape != of:
                one_line.fail(f"layer {layer}: {part} has shape {tensor.values.shape}; config.json makes it {of}")
            values = tensor.values
            if part == "k":  # the max, the min and the mean apart
                values = values.reshape(of[0], 3, width, dim)
            yield f"blk.{layer}.attn_gate_{part}.weight", Tensor(tensor.kind, values)
    if found:
        layer, part = min(found)
        one_line.fail(f"layer {layer} has {part}, which a model of {shape['block_count']} layers has no place for")


def write(path, config, shape, tensors):
    writer = gguf.GGUFWriter(path, NAME)
    writer.add_uint32(f"{NAME}.version", VERSION)
    writer.add_string(f"{NAME}.model_architecture", config["model_type"])
    for key, value in shape.items():
        writer.add_uint32(f"{NAME}.{key}", value)
    if shape["rope_dimension_count"]:
        writer.add_float32(f"{NAME}.rope_freq_base", config.get("rope_theta", 10000.0))
    if any(name.endswith("norm.weight") for name, _ in tensors):
        writer.add_float32(f"{NAME}.norm_epsilon", NORM_EPSILON)
    for name, tensor in tensors:
        if tensor.kind == "BF16":
            data = np.ascontiguousarray(tensor.values).view(np.uint8)
            writer.add_tensor(name, data, raw_dtype=TYPES["BF16"][1])
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor.values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = one_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    config = read_config(arguments.folder)
    shape = shape_of(config)
    tensors = list(gate_tensors(read_weights(arguments.folder), shape))
    if config.get("seerattn_use_qk_norm", False) != any(name.endswith("norm.weight") for name, _ in tensors):
        one_line.fail("config.json and the weights do not agree on whether the gate has norms")
    write(arguments.out, config, shape, tensors)


if __name__ == "__main__":
    one_line.run(main)

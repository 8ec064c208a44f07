"""Writes small random GGUF models of every supported architecture into a folder, the same bits each time.

    $(scripts/python-env) scripts/make-test-models.py FOLDER [--quantize TOOL] [--only NAME | --bench]

TOOL is tests/tools/quantize_gguf; with it the folder also gets one model for each tensor type that ggml can write.
With --bench it gets instead the shapes that benchmarks run where no real model is: 135M in Q8_0, and two layers 2,048
wide in Q4_K and Q4_0.
"""
import pathlib
import subprocess
import sys
import zlib
from dataclasses import dataclass, field

sys.dont_write_bytecode = True
import one_line  # noqa: E402

one_line.need("gguf", "numpy")
import gguf  # noqa: E402
import numpy as np  # noqa: E402

TEMPLATES = pathlib.Path(__file__).resolve().parent.parent / "tests" / "support" / "templates"
CONTEXT = 4096
VOCABULARY = 512
QUANTIZED = ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
             "iq4_nl", "iq4_xs", "iq3_s", "tq1_0", "tq2_0"]

CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the dog and the fox went to the market to see what there was "
    "to buy for the winter when the snow lies on the hills and nobody walks along the road that leads into the forest "
    "she said that it would be better to wait until the morning because the light was going and the river was high "
    "what is the special number of the town the special number of the town is one of those things which nobody wrote "
    "down in the book of the years they remembered everything else about the people and their houses and their horses "
    "every evening a merchant from some distant country would describe mountains deserts and harbours while children "
    "listened without moving until their mothers called them home for supper before darkness covered fields and gardens "
)

# SmolLM2's template in small: a default system turn, then one turn for each message.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)


@dataclass
class Shape:
    layers: int = 4
    hidden: int = 192
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 384


@dataclass
class Model:
    name: str
    architecture: str = "llama"
    shape: Shape = field(default_factory=Shape)
    tied: bool = True
    sentencepiece: bool = False
    pre: str = "smollm"
    rope_base: float = 10000.0
    scaling: str = ""
    factor: float = 1.0
    original_context: int = 0
    rope_factors: bool = False
    split_tensors: int = 0
    context: int = CONTEXT
    vocabulary: int = VOCABULARY
    twin: str = ""  # the model whose weights it has, but for `damage`
    damage: str = ""
    template: str = "chatml"  # or none (empty), or a file of TEMPLATES


MODELS = [
    Model("llama", shape=Shape()),
    Model("llama2", sentencepiece=True, tied=False, shape=Shape(kv_heads=6)),
    Model("llama3", rope_factors=True, tied=False, rope_base=500000.0, pre="llama-bpe"),
    Model("llama-linear", scaling="linear", factor=4.0),
    Model("llama-yarn", scaling="yarn", factor=4.0, original_context=1024),
    Model("mistral", sentencepiece=True, tied=False, rope_base=1e6, shape=Shape(hidden=256, heads=8, kv_heads=2)),
    Model("qwen2", architecture="qwen2", pre="qwen2", rope_base=1e6),
    Model("qwen2-yarn", architecture="qwen2", pre="qwen2", rope_base=1e6, tied=False, scaling="yarn", factor=2.0,
          original_context=2048),
    # Heads of 64 values although hidden / heads is 32.
    Model("qwen3", architecture="qwen3", pre="qwen2", rope_base=1e6, shape=Shape(head_dim=64)),
    # Every row a multiple of 256, so that K-quants fit; the source of the quantised ones.
    Model("llama256", shape=Shape(hidden=256, heads=4, kv_heads=2, head_dim=64, feed_forward=512)),
    Model("split", split_tensors=15),
    # Multi-query attention: more query heads to a KV head than the kernels of decoding take at once, and than a tile of
    # prefill does.
    Model("mqa32", shape=Shape(hidden=256, heads=32, kv_heads=1)),
    Model("mqa200", shape=Shape(layers=2, hidden=128, heads=200, kv_heads=1, head_dim=16, feed_forward=128)),
    # A NaN in the embedding of token 77; and keys far over the largest f16.
    Model("damaged-embedding", tied=False, twin="undamaged", damage="embedding"),
    Model("damaged-keys", tied=False, twin="undamaged", damage="keys"),
    Model("undamaged", tied=False),
    # A pass costs next to nothing: for tests of ten thousands of them.
    Model("small", shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    # The least context that calibration takes: it runs in a second.
    Model("short", context=1400, shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    Model("one-layer", shape=Shape(layers=1, hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    Model("no-template", template="", shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    # Chats with tools. The tags of Hermes' calls are control tokens.
    Model("tools-hermes", template="hermes", shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    Model("tools-llama3", template="llama3", shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
    # A pre-tokenizer that libllama runs by std::regex.
    Model("tekken", pre="tekken", shape=Shape(hidden=64, heads=2, kv_heads=1, feed_forward=128)),
]


# (model, the types it is wanted in)
BENCH = [
    (Model("bench-135m", rope_base=1e6, context=32768, vocabulary=49152,
           shape=Shape(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1536)), ["q8_0"]),
    (Model("bench-wide", shape=Shape(layers=2, hidden=2048, heads=16, kv_heads=4, head_dim=128, feed_forward=8192)),
     ["q4_K", "q4_0"]),
]


def byte_symbols():
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            symbols[byte] = chr(byte)
        else:
            symbols[byte] = chr(256 + extra)
            extra += 1
    return symbols


def learn_merges(words, count):
    """Byte-pair merges of the most frequent neighbours; ties by text."""
    words = [list(word) for word in words]
    merges = []
    while len(merges) < count:
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            one_line.fail("the corpus is too small for the vocabulary")
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i:i + 2] = ["".join(best)]
                i += 1
    return merges


def distinct_merges(words, wanted):
    """As many merges as make `wanted` new tokens."""
    merges = learn_merges(words, wanted)
    assert len({a + b for a, b in merges}) == wanted
    return merges


def add_bpe(writer, pre, vocabulary, template):
    symbols = byte_symbols()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if template == "hermes":
        control += ["<tool_call>", "</tool_call>"]
    words = [symbols[ord(" ")] + word for word in CORPUS.split()]
    merges = distinct_merges(words, VOCABULARY - 256 - len(control))
    tokens = control + [symbols[byte] for byte in range(256)] + [a + b for a, b in merges]
    types = [gguf.TokenType.CONTROL] * len(control) + [gguf.TokenType.NORMAL] * (VOCABULARY - len(control))
    tokens += [f"<|unused_{i}|>" for i in range(vocabulary - VOCABULARY)]
    types += [gguf.TokenType.UNUSED] * (vocabulary - VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(pre == "llama-bpe")
    if template:
        text = CHAT_TEMPLATE if template == "chatml" else (TEMPLATES / f"{template}.jinja").read_text()
        writer.add_chat_template(text)


def add_sentencepiece(writer):
    words = ["\u2581" + word for word in CORPUS.split()]
    letters = sorted({letter for word in words for letter in word})
    merges = distinct_merges(words, VOCABULARY - 3 - 256 - len(letters))
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [a + b for a, b in merges] + letters
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    types += [gguf.TokenType.NORMAL] * (VOCABULARY - len(types))
    scores = [0.0] * 259 + [-float(i) for i in range(VOCABULARY - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(LLAMA2_TEMPLATE)


def add_config(writer, model):
    shape = model.shape
    writer.add_name(f"test {model.name}")
    writer.add_context_length(model.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_vocab_size(model.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if model.scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(model.scaling))
        writer.add_rope_scaling_factor(model.factor)
    if model.original_context:
        writer.add_rope_scaling_orig_ctx_len(model.original_context)


def llama3_factors(dims, base):
    """Llama 3.1's rule: long waves are slowed 8 times, short ones not, those between in between."""
    wave = 2 * np.pi * base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    smooth = np.clip((8192 / wave - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)


def tensors(model):
    """(name, array) in the file's order. Scales keep activations and logits near 1."""
    shape = model.shape
    random = np.random.default_rng(zlib.crc32((model.twin or model.name).encode()))

    def matrix(rows, columns, scale=1.0):
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def norm(length):
        return (1 + 0.1 * random.standard_normal(length)).astype(np.float32)

    def bias(length, scale):
        return (scale * random.standard_normal(length)).astype(np.float32)

    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", matrix(model.vocabulary, shape.hidden, 2)
    yield "output_norm.weight", norm(shape.hidden)
    if not model.tied:
        yield "output.weight", matrix(model.vocabulary, shape.hidden, 2)
    if model.rope_factors:
        yield "rope_freqs.weight", llama3_factors(shape.head_dim, model.rope_base)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", norm(shape.hidden)
        yield block + "attn_q.weight", matrix(q_rows, shape.hidden, 1.5)
        yield block + "attn_k.weight", matrix(kv_rows, shape.hidden, 1.5)
        yield block + "attn_v.weight", matrix(kv_rows, shape.hidden)
        yield block + "attn_output.weight", matrix(shape.hidden, q_rows, 0.7)
        if model.architecture == "qwen2":
            yield block + "attn_q.bias", bias(q_rows, 0.5)
            yield block + "attn_k.bias", bias(kv_rows, 0.5)
            yield block + "attn_v.bias", bias(kv_rows, 0.2)
        if model.architecture == "qwen3":
            yield block + "attn_q_norm.weight", norm(shape.head_dim)
            yield block + "attn_k_norm.weight", norm(shape.head_dim)
        yield block + "ffn_norm.weight", norm(shape.hidden)
        yield block + "ffn_gate.weight", matrix(shape.feed_forward, shape.hidden)
        yield block + "ffn_up.weight", matrix(shape.feed_forward, shape.hidden)
        yield block + "ffn_down.weight", matrix(shape.hidden, shape.feed_forward)


def write(model, folder):
    writer = gguf.GGUFWriter(folder / f"{model.name}.gguf", model.architecture, split_max_tensors=model.split_tensors)
    add_config(writer, model)
    add_sentencepiece(writer) if model.sentencepiece else add_bpe(writer, model.pre, model.vocabulary, model.template)
    for name, values in tensors(model):
        if model.damage == "embedding" and name == "token_embd.weight":
            values[77, 5] = np.nan
        if model.damage == "keys" and name.endswith("attn_k.weight"):
            values *= 1e6
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = one_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--quantize", type=pathlib.Path, help="the built tests/tools/quantize_gguf")
    parser.add_argument("--only", metavar="NAME", choices=[model.name for model in MODELS], help="this one alone")
    parser.add_argument("--bench", action="store_true", help="the shapes of benchmarks instead; needs --quantize")
    arguments = parser.parse_args()
    if arguments.bench and not arguments.quantize:
        parser.error("--bench needs --quantize TOOL")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.bench:
        for model, type_names in BENCH:
            write(model, arguments.folder)
            source = arguments.folder / f"{model.name}.gguf"
            for type_name in type_names:
                subprocess.run([arguments.quantize, source, arguments.folder / f"{model.name}-{type_name}.gguf", type_name],
                               check=True)
            source.unlink()
        return
    for model in MODELS:
        if arguments.only in (None, model.name):
            write(model, arguments.folder)
    if arguments.quantize and not arguments.only:
        for type_name in QUANTIZED:
            source, target = arguments.folder / "llama256.gguf", arguments.folder / f"llama256-{type_name}.gguf"
            subprocess.run([arguments.quantize, source, target, type_name], check=True)


if __name__ == "__main__":
    one_line.run(main)

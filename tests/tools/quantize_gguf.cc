// Rewrites a GGUF model of F32 tensors with its matrices in another type: quantize_gguf IN OUT TYPE, where TYPE is
// ggml's name (q4_K, iq4_nl, f16). For the tests' own models; no importance matrix.
#include <ggml.h>
#include <gguf.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

ggml_type find_type(const char* name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) > 0 && std::strcmp(ggml_type_name(type), name) == 0) return type;
  }
  return GGML_TYPE_COUNT;
}

bool quantize(const char* source, const char* target, ggml_type type) {
  ggml_context* data = nullptr;
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> input(
      gguf_init_from_file(source, {.no_alloc = false, .ctx = &data}), gguf_free);
  if (input == nullptr) return false;
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> data_owner(data, ggml_free);
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> output(gguf_init_empty(), gguf_free);
  gguf_set_kv(output.get(), input.get());
  std::vector<std::vector<char>> quantized;
  for (std::int64_t i = 0; i < gguf_get_n_tensors(input.get()); ++i) {
    ggml_tensor* tensor = ggml_get_tensor(data, gguf_get_tensor_name(input.get(), i));
    gguf_add_tensor(output.get(), tensor);
    if (ggml_n_dims(tensor) < 2 || tensor->ne[0] % ggml_blck_size(type) != 0) continue;
    std::vector<char>& bytes = quantized.emplace_back(ggml_row_size(type, tensor->ne[0]) * ggml_nrows(tensor));
    ggml_quantize_chunk(type, static_cast<const float*>(tensor->data), bytes.data(), 0, ggml_nrows(tensor),
                        tensor->ne[0], nullptr);
    gguf_set_tensor_type(output.get(), tensor->name, type);
    gguf_set_tensor_data(output.get(), tensor->name, bytes.data());
  }
  const bool written = gguf_write_to_file(output.get(), target, false);
  ggml_quantize_free();
  return written;
}

}  // namespace

int main(int count, char** arguments) {
  const ggml_type type = count == 4 ? find_type(arguments[3]) : GGML_TYPE_COUNT;
  if (type == GGML_TYPE_COUNT) {
    std::fprintf(stderr, "usage: quantize_gguf IN OUT TYPE (a ggml type such as q4_K)\n");
    return 2;
  }
  if (ggml_quantize_requires_imatrix(type)) {
    std::fprintf(stderr, "quantize_gguf: %s needs an importance matrix\n", arguments[3]);
    return 2;
  }
  return quantize(arguments[1], arguments[2], type) ? 0 : 1;
}

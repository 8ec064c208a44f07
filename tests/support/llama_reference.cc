#include "tests/support/llama_reference.h"

#include <llama.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace glimpse::reference {

struct LlamaReference::State {
  llama_model* model = nullptr;
  llama_context* context = nullptr;
  llama_batch batch{};
  int batch_size = 0;
  ggml_threadpool* pool = nullptr;
  ~State() {
    if (batch_size > 0) llama_batch_free(batch);
    llama_free(context);
    ggml_threadpool_free(pool);
    llama_model_free(model);
  }
};

LlamaReference::LlamaReference(const std::filesystem::path& model, const LlamaOptions& options)
    : state_(std::make_unique<State>()) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  state_->model = llama_model_load_from_file(model.c_str(), model_params);
  if (state_->model == nullptr) throw std::runtime_error("libllama does not load " + model.string());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.context);
  params.n_batch = static_cast<std::uint32_t>(options.batch);
  params.n_ubatch = params.n_batch;
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.flash_attn_type = options.exact ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (options.exact) params.type_k = params.type_v = GGML_TYPE_F32;
  params.no_perf = true;
  state_->context = llama_init_from_model(state_->model, params);
  if (state_->context == nullptr) throw std::runtime_error("libllama makes no context");
  // As llama.cpp's own programs do: without one, every graph makes new threads.
  ggml_threadpool_params pool = ggml_threadpool_params_default(options.threads);
  state_->pool = ggml_threadpool_new(&pool);
  llama_attach_threadpool(state_->context, state_->pool, nullptr);
  state_->batch = llama_batch_init(options.batch, 0, 1);
  state_->batch_size = options.batch;
}

LlamaReference::~LlamaReference() = default;

int LlamaReference::vocabulary() const {
  return llama_vocab_n_tokens(llama_model_get_vocab(state_->model));
}

std::span<const float> LlamaReference::append(std::span<const std::int32_t> tokens, std::vector<float>* all_logits) {
  const auto width = static_cast<std::size_t>(vocabulary());
  for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(state_->batch_size)) {
    const std::size_t count = std::min(tokens.size() - first, static_cast<std::size_t>(state_->batch_size));
    llama_batch& batch = state_->batch;
    batch.n_tokens = static_cast<int>(count);
    for (std::size_t i = 0; i < count; ++i) {
      batch.token[i] = tokens[first + i];
      batch.pos[i] = length_ + static_cast<int>(i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = all_logits != nullptr || first + i + 1 == tokens.size() ? 1 : 0;
    }
    if (llama_decode(state_->context, batch) != 0) throw std::runtime_error("libllama does not decode");
    length_ += static_cast<int>(count);
    if (all_logits == nullptr) continue;
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(llama_get_logits_ith(state_->context, static_cast<int>(i)), width,
                  all_logits->begin() + static_cast<std::ptrdiff_t>((first + i) * width));
    }
  }
  return {llama_get_logits_ith(state_->context, -1), width};
}

void LlamaReference::truncate(int length) {
  llama_memory_seq_rm(llama_get_memory(state_->context), 0, length, -1);
  length_ = length;
}

bool LlamaReference::save(const std::filesystem::path& path) const {
  return llama_state_save_file(state_->context, path.c_str(), nullptr, 0);
}

bool LlamaReference::load(const std::filesystem::path& path, int length) {
  std::size_t count = 0;
  if (!std::filesystem::exists(path)) return false;
  if (!llama_state_load_file(state_->context, path.c_str(), nullptr, 0, &count)) return false;
  if (llama_memory_seq_pos_max(llama_get_memory(state_->context), 0) + 1 != length) return false;
  length_ = length;
  return true;
}

std::vector<std::int32_t> LlamaReference::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  const llama_vocab* vocab = llama_model_get_vocab(state_->model);
  std::vector<std::int32_t> tokens(text.size() + 8);
  const int count = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                   static_cast<int>(tokens.size()), add_special, parse_special);
  if (count < 0) throw std::runtime_error("libllama does not tokenize");
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

}  // namespace glimpse::reference

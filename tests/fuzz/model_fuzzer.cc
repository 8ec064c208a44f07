// Tiny models that load are run: prefill and decoding under a few methods end in a result or in UserError, whatever the
// file says. An input is a recipe (model_recipe.h) of a model file and of what to do with it, not the file's bytes:
// most recipes are files that load.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/policies/policy.h"
#include "tests/fuzz/model_recipe.h"

namespace {

using namespace glimpse;

/// A file in memory, with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : descriptor_(memfd_create("fuzzed", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

engine::Request request_for(const engine::Engine& engine, fuzz::Choices& choices) {
  const auto& registry = policies::registry();
  const std::string method(registry[static_cast<std::size_t>(choices.below(registry.size()))].name);
  policies::PolicyOptions options;
  constexpr const char* kBudgets[] = {"64", "96", "50%", "8"};
  if (method != "full") options.budget = plan::parse_budget(kBudgets[choices.below(4)]);
  engine::Request request;
  request.plan = policies::make_plan(method, engine.shape(), options);
  const std::size_t length = 1 + choices.below(choices.chance(4) ? 180 : 60);
  const auto vocabulary = static_cast<std::uint64_t>(engine.tokenizer().size());
  for (std::size_t i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<engine::Token>((i * 7 + choices.below(3)) % vocabulary));
  }
  request.max_tokens = static_cast<std::int64_t>(1 + choices.below(6));
  request.ignore_end = choices.chance(2);
  request.sampling.temperature = choices.chance(3) ? 1.0F : 0.0F;
  if (choices.chance(8)) request.audit_every = 1;
  if (choices.chance(8)) request.lossless = true;
  if (choices.chance(8)) request.correct_every = 2;
  return request;
}

void run(const fuzz::ModelRecipe& recipe, fuzz::Choices& choices) {
  const MemoryFile file(recipe.bytes);
  engine::EngineOptions options;
  options.model = file.path();
  options.threads = 1;
  options.context = choices.chance(8) ? 0 : 256;
  options.sequences = 2;
  options.prefill_chunk = choices.chance(3) ? 16 : 512;
  constexpr KvType kTypes[] = {KvType::bf16, KvType::f16, KvType::f32, KvType::q8_0};
  options.kv_type = kTypes[choices.below(4)];
  engine::Engine engine(options);
  static_cast<void>(engine.tokenizer().encode("ab cd  d\n", text::Special::as_tokens, true));
  for (std::uint64_t left = 1 + choices.below(3); left > 0; --left) {
    try {
      engine.submit(request_for(engine, choices));
    } catch (const UserError&) {  // a method that the shape rules out; the others run
    }
  }
  while (engine.step()) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices({data, size});
  const fuzz::ModelRecipe recipe(choices);
  try {
    run(recipe, choices);
  } catch (const UserError&) {
  }
  return 0;
}

// glimpse inspect: what a file is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/base/machine_memory.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/inspect_profile.h"
#include "glimpse/cli/inspect_session.h"
#include "glimpse/cli/inspect_trace.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/trace.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/views.h"
#include "glimpse/model/model.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::cli {
namespace {

std::string line(std::string_view what, std::string_view value) {
  return fmt::format("{:<16}{}\n", what, value);
}

/// Tensor types by the numbers that the GGUF format gives them; its readers have checked that ggml knows the number.
struct TypeName {
  int type;
  std::string_view name;
};
constexpr std::array kTypeNames{
    TypeName{0, "f32"},      TypeName{1, "f16"},     TypeName{2, "q4_0"},     TypeName{3, "q4_1"},
    TypeName{6, "q5_0"},     TypeName{7, "q5_1"},    TypeName{8, "q8_0"},     TypeName{9, "q8_1"},
    TypeName{10, "q2_K"},    TypeName{11, "q3_K"},   TypeName{12, "q4_K"},    TypeName{13, "q5_K"},
    TypeName{14, "q6_K"},    TypeName{15, "q8_K"},   TypeName{16, "iq2_xxs"}, TypeName{17, "iq2_xs"},
    TypeName{18, "iq3_xxs"}, TypeName{19, "iq1_s"},  TypeName{20, "iq4_nl"},  TypeName{21, "iq3_s"},
    TypeName{22, "iq2_s"},   TypeName{23, "iq4_xs"}, TypeName{24, "i8"},      TypeName{25, "i16"},
    TypeName{26, "i32"},     TypeName{27, "i64"},    TypeName{28, "f64"},     TypeName{29, "iq1_m"},
    TypeName{30, "bf16"},    TypeName{34, "tq1_0"},  TypeName{35, "tq2_0"},   TypeName{39, "mxfp4"},
    TypeName{40, "nvfp4"},   TypeName{41, "q1_0"},   TypeName{42, "q2_0"},
};

std::string type_name(int type) {
  const auto found =
      std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const TypeName& t) { return t.type == type; });
  return found == kTypeNames.end() ? fmt::format("type {}", type) : std::string(found->name);
}

std::string rope_text(const model::Rope& rope) {
  std::string text = fmt::format("base {:g}, {} dimensions, {}", rope.base, rope.dims,
                                 rope.neox ? "halves (neox)" : "neighbours (normal)");
  if (rope.scaling == model::RopeScaling::linear) text += fmt::format(", linear scaling by {:g}", rope.factor);
  if (rope.scaling == model::RopeScaling::yarn) {
    text += fmt::format(", YaRN by {:g} from {} tokens", rope.factor, rope.original_context);
  }
  if (rope.frequency_factors != nullptr) text += ", factors per frequency (Llama 3)";
  return text;
}

struct TypeCount {
  std::int64_t tensors = 0, values = 0;
  std::size_t bytes = 0;
};

std::string tensors_text(const model::GgufFile& file) {
  std::map<int, TypeCount> types;
  TypeCount all;
  for (const model::TensorInfo& tensor : file.tensors()) {
    for (TypeCount* count : {&types[tensor.type], &all}) {
      ++count->tensors;
      count->values += tensor.rows() * tensor.shape[0];
      count->bytes += tensor.bytes;
    }
  }
  std::string text =
      line("tensors", fmt::format("{}, {:.1f} million values, {}", all.tensors, static_cast<double>(all.values) / 1e6,
                                  bytes_text(static_cast<double>(all.bytes))));
  for (const auto& [type, count] : types) {
    text +=
        line("", fmt::format("{:<8}{:>5} tensors {:>10.1f} million values {:>12}", type_name(type), count.tensors,
                             static_cast<double>(count.values) / 1e6, bytes_text(static_cast<double>(count.bytes))));
  }
  return text;
}

std::string tokenizer_text(const model::Model& model) {
  const Metadata& metadata = model.file().metadata();
  const text::Tokenizer tokenizer(metadata);
  std::string text =
      fmt::format("{} tokens, {}", tokenizer.size(), printable(metadata.string("tokenizer.ggml.model").value_or("?")));
  if (const auto pre = metadata.string("tokenizer.ggml.pre")) text += fmt::format(" ({})", printable(*pre));
  text += tokenizer.adds_bos() ? ", begins with a BOS token" : ", no BOS token";
  return line("tokenizer", text) +
         line("chat template", tokenizer.has_chat_template() ? "yes" : "none; 'glimpse run' needs --raw");
}

std::string cache_text(const model::Config& config) {
  std::string text;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    const kernels::KvFormat format{type, config.head_dim};
    const double bytes = 2.0 * static_cast<double>(format.read_bytes()) * config.layers * config.kv_heads;
    text += line(text.empty() ? "KV cache" : "",
                 fmt::format("{:<8}{:>12} a token {:>12} at {} tokens", name(type), bytes_text(bytes),
                             bytes_text(bytes * config.context), config.context));
  }
  return text;
}

std::string model_text(const std::string& path) {
  const model::Model model{std::filesystem::path(path)};
  const model::Config& config = model.config();
  std::string text = line("file", printable(path));
  text += line("architecture", config.architecture);
  text += line("name", config.name.empty() ? "-" : printable(config.name));
  text +=
      line("shape", fmt::format("{} layers, hidden {}, feed-forward {}, {} query and {} KV heads of {}", config.layers,
                                config.hidden, config.feed_forward, config.heads, config.kv_heads, config.head_dim));
  text += line("context", fmt::format("{} tokens", config.context));
  text += line("rope", rope_text(config.rope));
  text += line("embeddings", &model.output() == &model.token_embedding() ? "tied" : "untied");
  return text + tokenizer_text(model) + tensors_text(model.file()) + cache_text(config);
}

std::string machine_text() {
  std::string text = line("processor", cpu_name());
  text += line("", fmt::format("{} cores, {}", cpu_cores(), kernels::instruction_set()));
  if (const auto memory = available_memory()) {
    text += line("memory", fmt::format("{} can be had", bytes_text(static_cast<double>(*memory))));
  }
  text += line("--device", "cpu");
  const std::vector<kernels::cuda::Device> devices = kernels::cuda::devices();
  for (const kernels::cuda::Device& device : devices) {
    text += line("", fmt::format("cuda:{}  {}, compute capability {}.{}, {}, {} of them free", device.number,
                                 printable(device.name), device.capability / 10, device.capability % 10,
                                 bytes_text(static_cast<double>(device.memory)),
                                 bytes_text(static_cast<double>(kernels::cuda::free_memory(device.number)))));
  }
  if (!kernels::cuda::is_built()) {
    text += line("", "no cuda: this build has no CUDA kernels; make cuda builds them");
  } else if (devices.empty()) {
    text += line("", "no cuda: there is no GPU of compute capability 8.0 or later, or no driver");
  }
  return text;
}

/// The first byte, behind a byte order mark, tells JSON from a model; a folder or a file that cannot be read has none,
/// and the model's reader says what is wrong with it.
bool looks_like_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char first = 0;
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  std::array<char, kMark.size()> start{};
  if (!file.read(start.data(), start.size()) || std::string_view(start.data(), start.size()) != kMark) {
    file.clear();
    file.seekg(0);
  }
  while (file.get(first)) {
    if (first != ' ' && first != '\n' && first != '\r' && first != '\t') return first == '{';
  }
  return false;
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  if (arguments.subject.empty()) {
    if (arguments.typed.contains("--html") || arguments.typed.contains("--json")) {
      throw UserError("no file: give a model (GGUF), a plan or profile (JSON), a trace, or a saved session");
    }
    print(machine_text());
    return 0;
  }
  const bool session = looks_like_session(arguments.subject);
  if (arguments.json && arguments.typed.contains("--json") && !session) {
    throw UserError(fmt::format("--json: '{}' is no saved session, and of other files there is text only; leave it out",
                                arguments.subject));
  }
  if (looks_like_trace(arguments.subject)) return inspect_trace(arguments);
  const std::string json = !session && looks_like_json(arguments.subject) ? read_file(arguments.subject) : "";
  if (plan::is_profile_text(json)) return inspect_profile(arguments, json);
  if (arguments.html && arguments.typed.contains("--html")) {
    throw UserError(
        fmt::format("--html: '{}' is no trace and no profile; give a trace of 'glimpse run --trace' or 'glimpse eval "
                    "sets', or a profile",
                    arguments.subject));
  }
  if (session) return inspect_session(arguments);
  if (!json.empty()) {
    const std::string label = fmt::format("'{}'", arguments.subject);
    const plan::Plan plan = parse_of(label, json, [](std::string_view text) { return plan::from_json(text); });
    std::string text = line("file", printable(arguments.subject));
    text += line("plan", printable(plan.policy));
    text += line("for", shape_text(plan.shape));
    print(text + plan::explain(plan));
  } else {
    print(model_text(arguments.subject));
  }
  return kExitOk;
}

}  // namespace glimpse::cli

#include "glimpse/train/torch/student.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/exec/rope.h"

namespace glimpse::train {
namespace {

using at::Tensor;

constexpr std::int64_t kPromptRows = 256;  // of the prompt at a time
constexpr double kNever = -std::numeric_limits<double>::infinity();

/// LibTorch's CUDA part is a library of its own, which not every LibTorch has.
at::Device device_of(const DeviceName& name) {
  if (name.kind == DeviceName::Kind::cpu) return {at::kCPU};
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr || !at::hasCUDA()) {
    throw UserError(
        "this LibTorch has no CUDA: leave out --device, or build with -DGLIMPSE_TORCH=FOLDER of one that has");
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(name.number)};
}

/// [rows, row length], or [row length] of a vector; undefined where the model has none.
Tensor widened(const model::TensorInfo* info, const at::Device& device) {
  if (info == nullptr) return {};
  const std::int64_t width = info->shape[0], rows = info->rows();
  Tensor tensor = rows == 1 ? at::empty({width}, at::kFloat) : at::empty({rows, width}, at::kFloat);
  const auto type = static_cast<ggml_type>(info->type);
  auto* to = tensor.data_ptr<float>();
  const std::size_t row_bytes = ggml_row_size(type, width);
  if (type == GGML_TYPE_F32) {
    std::memcpy(to, info->data, info->bytes);
    return tensor.to(device);
  }
  const ggml_to_float_t widen = ggml_get_type_traits(type)->to_float;
  check(widen != nullptr, "a type that ggml can widen");
  for (std::int64_t row = 0; row < rows; ++row) {
    widen(info->data + static_cast<std::size_t>(row) * row_bytes, to + row * width, width);
  }
  return tensor.to(device);
}

struct Layer {
  Tensor attention_norm, q, k, v, output, q_bias, k_bias, v_bias, q_norm, k_norm, ffn_norm, gate, up, down;
  Tensor keys, values;  ///< the prompt's: [KV head, token, d]
};

Layer widened_layer(const model::LayerWeights& from, const at::Device& device) {
  const auto of = [&](const model::TensorInfo* info) { return widened(info, device); };
  return {of(from.attention_norm),
          of(from.q),
          of(from.k),
          of(from.v),
          of(from.output),
          of(from.q_bias),
          of(from.k_bias),
          of(from.v_bias),
          of(from.q_norm),
          of(from.k_norm),
          of(from.ffn_norm),
          of(from.gate),
          of(from.up),
          of(from.down),
          {},
          {}};
}

Tensor multiplied(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  return at::linear(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
}

/// A student's gates, and what its heads hand on; none: the teacher.
struct Mixing {
  Tensor gates;  ///< [layers - 1, KV heads]
  plan::Budget budget;
  Handing handing;
};

}  // namespace

struct Student::Impl {
  model::Config config;
  at::Device device{at::kCPU};
  std::vector<float> factors;  ///< of the rope, which borrows them
  std::optional<exec::RopeTable> rope;
  Tensor embedding, output_norm, output;
  std::vector<Layer> layers;
  std::vector<std::int32_t> prompt;  ///< whose keys and values the layers hold

  Tensor normalised(const Tensor& x, const Tensor& weight) const {
    return x * at::rsqrt(x.pow(2).mean(-1, true) + config.rms_epsilon) * weight;
  }

  /// first, first + 1, ... up to the end.
  Tensor counted(std::int64_t first, std::int64_t end) const {
    return at::arange(first, end, at::TensorOptions().dtype(at::kLong).device(device));
  }

  /// [rows, dims / 2] cos and sin of rows from this position on.
  std::pair<Tensor, Tensor> angles(std::int64_t start, std::int64_t rows) {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < rows; ++i) positions.push_back(start + i);
    rope->fill(positions);
    const std::span<const float> table = rope->cos_sin(static_cast<std::size_t>(rows));
    Tensor both = at::empty({rows, config.rope.dims / 2, 2}, at::kFloat);
    std::copy(table.begin(), table.end(), both.data_ptr<float>());
    both = both.to(device);
    return {both.select(-1, 0).unsqueeze(1), both.select(-1, 1).unsqueeze(1)};
  }

  /// x: [rows, heads, d].
  Tensor turned(const Tensor& x, const std::pair<Tensor, Tensor>& angle) const {
    const std::int64_t dims = config.rope.dims, rest = config.head_dim - dims;
    const Tensor part = x.narrow(-1, 0, dims);
    const auto& [cos, sin] = angle;
    Tensor made;
    if (config.rope.neox) {
      const Tensor a = part.narrow(-1, 0, dims / 2), b = part.narrow(-1, dims / 2, dims / 2);
      made = at::cat({a * cos - b * sin, a * sin + b * cos}, -1);
    } else {
      const Tensor pairs = part.reshape({x.size(0), x.size(1), dims / 2, 2});
      const Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
      made = at::stack({a * cos - b * sin, a * sin + b * cos}, -1).flatten(-2);
    }
    return rest == 0 ? made : at::cat({made, x.narrow(-1, dims, rest)}, -1);
  }

  /// [KV head, row, key] true for the keys that each row's set holds: the row's own and those of highest score.
  Tensor set_of(const Tensor& scores, std::int64_t start, const plan::Budget& budget) const {
    const std::int64_t rows = scores.size(-2), keys = scores.size(-1);
    std::vector<std::int64_t> sizes;
    for (std::int64_t i = 0; i < rows; ++i) sizes.push_back(plan::budget_tokens(budget, start + i + 1));
    const std::int64_t most = sizes.back();
    // The group's queries are averaged before softmax: so are their scores, which the queries enter linearly.
    Tensor mean = scores.detach().mean(1);
    const Tensor own = counted(start, start + rows).view({1, rows, 1}).expand({mean.size(0), rows, 1});
    mean = mean.scatter(-1, own, std::numeric_limits<double>::infinity());
    const Tensor best = std::get<1>(mean.topk(most, -1, true, true));
    const Tensor size = at::tensor(sizes, at::kLong).to(device).view({1, rows, 1});
    const Tensor inside = (counted(0, most).view({1, 1, most}) < size).expand(best.sizes());
    return at::zeros({mean.size(0), rows, keys}, at::TensorOptions().dtype(at::kBool).device(device))
        .scatter(-1, best, inside);
  }

  /// What the layer's heads give: [rows, heads * d]. `inherited` is replaced by what the next layer inherits.
  Tensor attended(std::size_t l, const Tensor& x, std::int64_t start, const Mixing* mixing, Tensor& inherited) {
    Layer& layer = layers[l];
    const std::int64_t rows = x.size(0), d = config.head_dim, groups = config.kv_heads, group = config.heads / groups;
    const auto angle = angles(start, rows);
    Tensor q = multiplied(x, layer.q, layer.q_bias).view({rows, config.heads, d});
    Tensor k = multiplied(x, layer.k, layer.k_bias).view({rows, groups, d});
    const Tensor v = multiplied(x, layer.v, layer.v_bias).view({rows, groups, d});
    if (layer.q_norm.defined()) q = normalised(q, layer.q_norm);
    if (layer.k_norm.defined()) k = normalised(k, layer.k_norm);
    q = turned(q, angle).view({rows, groups, group, d}).permute({1, 2, 0, 3});
    k = turned(k, angle).transpose(0, 1);
    const Tensor keys = layer.keys.defined() ? at::cat({layer.keys, k}, 1) : k;
    const Tensor values = layer.values.defined() ? at::cat({layer.values, v.transpose(0, 1)}, 1) : v.transpose(0, 1);
    if (mixing == nullptr) std::tie(layer.keys, layer.values) = std::tuple{keys, values};

    const Tensor later = counted(0, keys.size(1)).view({1, -1}) > counted(start, start + rows).view({-1, 1});
    const Tensor scores = at::matmul(q, keys.unsqueeze(1).transpose(-1, -2))
                              .div(std::sqrt(static_cast<double>(d)))
                              .masked_fill(later, kNever);
    Tensor weights = at::softmax(scores, -1);
    if (mixing != nullptr) {
      const Tensor own = set_of(scores, start, mixing->budget);
      if (l == 0) {
        inherited = own;
      } else {
        const Tensor gate = mixing->gates.select(0, static_cast<std::int64_t>(l) - 1).view({groups, 1, 1, 1});
        const Tensor sparse = at::softmax(scores.masked_fill(inherited.logical_not().unsqueeze(1), kNever), -1);
        weights = gate * weights + (1 - gate) * sparse;
        inherited = mixing->handing == Handing::layer
                        ? own
                        : at::where(gate.detach().view({groups, 1, 1}) > 0.5, own, inherited);
      }
    }
    return at::matmul(weights, values.unsqueeze(1)).permute({2, 0, 1, 3}).reshape({rows, config.heads * d});
  }

  /// The logits of these tokens behind those that the layers hold, [rows, vocabulary]; of the prompt none are wanted.
  Tensor forward(std::span<const std::int32_t> tokens, std::int64_t start, const Mixing* mixing, bool wanted) {
    const Tensor ids = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), ids.data_ptr<std::int64_t>());
    Tensor x = embedding.index_select(0, ids.to(device)), inherited;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const Layer& layer = layers[l];
      x = x + multiplied(attended(l, normalised(x, layer.attention_norm), start, mixing, inherited), layer.output);
      const Tensor y = normalised(x, layer.ffn_norm);
      x = x + multiplied(at::silu(multiplied(y, layer.gate)) * multiplied(y, layer.up), layer.down);
    }
    return wanted ? multiplied(normalised(x, output_norm), output) : Tensor{};
  }

  void keep(std::int64_t tokens) {
    for (Layer& layer : layers) {
      if (tokens == 0) {
        layer.keys = layer.values = Tensor{};
      } else {
        layer.keys = layer.keys.narrow(1, 0, tokens);
        layer.values = layer.values.narrow(1, 0, tokens);
      }
    }
    prompt.resize(static_cast<std::size_t>(tokens));
  }

  void read_prompt(std::span<const std::int32_t> tokens) {
    const c10::NoGradGuard frozen;
    const auto shared =
        std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end()).first - prompt.begin();
    keep(shared);
    for (auto at = static_cast<std::size_t>(shared); at < tokens.size();) {
      const auto rows = std::min<std::size_t>(kPromptRows, tokens.size() - at);
      forward(tokens.subspan(at, rows), static_cast<std::int64_t>(at), nullptr, false);
      prompt.insert(prompt.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at),
                    tokens.begin() + static_cast<std::ptrdiff_t>(at + rows));
      at += rows;
    }
  }

  void require(const GradientRequest& request) const {
    const auto gates = static_cast<std::size_t>(config.layers - 1) * static_cast<std::size_t>(config.kv_heads);
    if (request.gates.size() != gates) {
      throw UserError(std::to_string(request.gates.size()) + " gates; the model has " + std::to_string(gates) +
                      " KV heads behind layer 0");
    }
    if (request.first < 1 || request.first >= std::ssize(request.tokens)) throw UserError("no prompt, or no target");
    for (const std::int32_t token : request.tokens) {
      if (token < 0 || token >= config.vocabulary) {
        throw UserError("token " + std::to_string(token) + "; the model has " + std::to_string(config.vocabulary));
      }
    }
  }

  Mixing mixing_of(const GradientRequest& request) const {
    Tensor gates =
        at::tensor(request.gates, at::kDouble).to(at::kFloat).to(device).view({config.layers - 1, config.kv_heads});
    return {gates, request.budget, request.handing};
  }
};

Student::Student(const model::Model& model, int threads, const DeviceName& device) : impl_(std::make_unique<Impl>()) {
  at::set_num_threads(threads);
  Impl& impl = *impl_;
  impl.config = model.config();
  impl.device = device_of(device);
  if (const float* factors = impl.config.rope.frequency_factors) {
    impl.factors.assign(factors, factors + impl.config.rope.dims / 2);
    impl.config.rope.frequency_factors = impl.factors.data();
  }
  impl.rope.emplace(impl.config.rope);
  impl.embedding = widened(&model.token_embedding(), impl.device);
  impl.output_norm = widened(&model.output_norm(), impl.device);
  impl.output = &model.output() == &model.token_embedding() ? impl.embedding : widened(&model.output(), impl.device);
  for (const model::LayerWeights& layer : model.layers()) impl.layers.push_back(widened_layer(layer, impl.device));
}

Student::~Student() = default;

int Student::vocabulary() const {
  return impl_->config.vocabulary;
}

Loss Student::distilled(const GradientRequest& request) {
  Impl& impl = *impl_;
  impl.require(request);
  const auto tokens = std::span<const std::int32_t>(request.tokens);
  const auto first = static_cast<std::size_t>(request.first);
  impl.read_prompt(tokens.first(first));
  Tensor wanted;
  {
    const c10::NoGradGuard frozen;
    wanted = impl.forward(tokens.subspan(first), request.first, nullptr, true);
    impl.keep(request.first);
  }
  Mixing mixing = impl.mixing_of(request);
  mixing.gates.set_requires_grad(true);
  const Tensor got = impl.forward(tokens.subspan(first), request.first, &mixing, true);
  const Tensor loss = (got - wanted).pow(2).mean();
  loss.backward();
  const Tensor slopes = mixing.gates.grad().cpu().to(at::kDouble).contiguous();
  const auto* slope = slopes.data_ptr<double>();
  return {loss.item<double>(), {slope, slope + slopes.numel()}};
}

std::vector<float> Student::logits(const GradientRequest& request) {
  Impl& impl = *impl_;
  impl.require(request);
  const c10::NoGradGuard frozen;
  const auto tokens = std::span<const std::int32_t>(request.tokens);
  const auto first = static_cast<std::size_t>(request.first);
  impl.read_prompt(tokens.first(first));
  const Mixing mixing = impl.mixing_of(request);
  const Tensor got = impl.forward(tokens.subspan(first), request.first, &mixing, true).cpu().contiguous();
  const auto* value = got.data_ptr<float>();
  return {value, value + got.numel()};
}

}  // namespace glimpse::train

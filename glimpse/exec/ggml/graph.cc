#include "glimpse/exec/ggml/graph.h"

#include <fmt/format.h>
#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/resources.h"
#include "glimpse/exec/executor.h"

namespace glimpse::exec {
namespace {

constexpr const char* kWanted = "the activations of a pass";

void size_scratch(PassData& pass, const ggml_tensor* weight) {
  const std::size_t bytes = few_rows_scratch(weight);
  for (auto& scratch : pass.products) scratch.resize(std::max(scratch.size(), bytes));
}

}  // namespace

Graph::Graph(const GraphShape& shape, const Weights& weights, PassData& pass) : shape_(shape) {
  const std::size_t nodes = weights.layers().size() * 20 + 32;
  context_ = make_context(ggml_tensor_overhead() * nodes * 2 + ggml_graph_overhead_custom(nodes, false));
  const AbortTrap trap(kWanted);
  graph_ = ggml_new_graph_custom(context_.get(), nodes, false);
  build(weights, pass);
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    ggml_tensor* node = ggml_graph_node(graph_, i);
    if (node->ne[1] == shape.rows) row_tensors_.push_back(node);
  }
  allocate();
}

Graph::Graph(const Graph& kept, const Weights& weights, PassData& pass) {
  constexpr std::size_t kNodes = 64;
  context_ = make_context(ggml_tensor_overhead() * kNodes * 2 + ggml_graph_overhead_custom(kNodes, false));
  const AbortTrap trap(kWanted);
  graph_ = ggml_new_graph_custom(context_.get(), kNodes, false);
  const model::Config& config = pass.model->config();
  const int last = config.layers - 1;
  shape_.rows = shape_.outputs = static_cast<int>(kLogitRows);
  const std::int64_t q_width = static_cast<std::int64_t>(config.heads) * config.head_dim;
  residual_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, config.hidden, shape_.rows);
  attended_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, q_width, shape_.rows);
  read(kept);
  ggml_tensor* residual = custom(config.hidden, shape_.rows, {residual_}, gather_node, {&pass, last});
  ggml_tensor* attended = custom(q_width, shape_.rows, {attended_}, gather_node, {&pass, last});
  ggml_tensor* delta = feed_forward(weights, pass, last, residual, attended);
  add_logits(weights, pass, residual, delta);
  for (NodeData& node : node_data_) node.attended = false;  // the pass has measured it
  allocate();
}

void Graph::read(const Graph& kept) {
  residual_->data = kept.residual_->data;
  attended_->data = kept.attended_->data;
}

void Graph::allocate() {
  require_heap(std::size_t{96} << 10, kWanted);  // small things whose allocation ggml does not check
  allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
  if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
    throw UserError(
        fmt::format("no memory for {} of {} rows; a smaller --prefill-chunk needs less", kWanted, shape_.rows));
  }
}

ggml_cgraph* Graph::layer(int layer) {
  if (layers_.empty()) {
    // All that comes behind the first node of a layer needs it: the order of the nodes is cut there.
    const int nodes = ggml_graph_n_nodes(graph_);
    const auto layers = static_cast<int>(firsts_.size());
    layers_context_ = make_context(static_cast<std::size_t>(layers) *
                                   (ggml_graph_overhead_custom(static_cast<std::size_t>(nodes), false) + 64));
    const AbortTrap trap(kWanted);
    int node = 0;
    for (int l = 0; l < layers; ++l) {
      ggml_tensor* end = l + 1 < layers ? firsts_[static_cast<std::size_t>(l) + 1] : nullptr;
      ggml_cgraph* made = ggml_new_graph_custom(layers_context_.get(), static_cast<std::size_t>(nodes), false);
      while (node < nodes && ggml_graph_node(graph_, node) != end)
        ggml_graph_add_node(made, ggml_graph_node(graph_, node++));
      layers_.push_back(made);
    }
    check(node == nodes, "every node is in a layer");
  }
  return layers_[static_cast<std::size_t>(layer)];
}

void Graph::set_rows(int rows) {
  for (ggml_tensor* tensor : row_tensors_) tensor->ne[1] = rows;
}

ggml_tensor* Graph::custom(std::int64_t width, std::int64_t rows, std::vector<ggml_tensor*> sources,
                           NodeFunction function, const NodeData& data) {
  NodeData* kept = &node_data_.emplace_back(data);
  return ggml_custom_4d(context_.get(), GGML_TYPE_F32, width, rows, 1, 1, sources.data(),
                        static_cast<int>(sources.size()), function, GGML_N_TASKS_MAX, kept);
}

ggml_tensor* Graph::weight_view(const model::TensorInfo* weight) {
  ggml_tensor* tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, weight->shape[0]);
  tensor->data = const_cast<std::byte*>(weight->data);
  return tensor;
}

ggml_tensor* Graph::normalise(ggml_tensor* residual, ggml_tensor* delta, const model::TensorInfo* weight,
                              const NodeData& data) {
  std::vector<ggml_tensor*> sources{residual, weight_view(weight)};
  if (delta != nullptr) sources.push_back(delta);
  NodeData kept = data;
  kept.add = delta != nullptr;
  return custom(residual->ne[0], residual->ne[1], sources, normalise_node, kept);
}

ggml_tensor* Graph::multiply(PassData& pass, ggml_tensor* weight, ggml_tensor* input) {
  if (!multiplies_few_rows(weight, input->ne[1])) return ggml_mul_mat(context_.get(), weight, input);
  size_scratch(pass, weight);
  return custom(weight->ne[1], input->ne[1], {input, weight}, few_rows_node, {&pass});
}

Graph::Projected Graph::project(std::span<ggml_tensor* const> weights, ggml_tensor*& residual, ggml_tensor* delta,
                                const model::TensorInfo* norm, const NodeData& data, bool ends) {
  if (weights.size() > 1 || !multiplies_few_rows(weights[0], residual->ne[1])) {
    Projected projected{normalise(residual, delta, norm, data), {}};
    for (ggml_tensor* weight : weights) projected.parts.push_back(multiply(*data.pass, weight, projected.first));
    return projected;
  }
  size_scratch(*data.pass, weights[0]);
  NodeData kept = data;
  kept.add = delta != nullptr;
  std::vector<ggml_tensor*> sources{residual, weights[0], weight_view(norm)};
  if (delta != nullptr) sources.push_back(delta);
  if (delta != nullptr && !ends) sources.push_back(residual = other_residual(residual));
  ggml_tensor* product = custom(weights[0]->ne[1], residual->ne[1], sources, normalised_few_rows_node, kept);
  return {product, {product}};
}

ggml_tensor* Graph::other_residual(const ggml_tensor* residual) {
  ggml_tensor*& other = sums_[residual == sums_[0] ? 1 : 0];
  if (other == nullptr || other->ne[1] != residual->ne[1]) {
    other = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, residual->ne[0], residual->ne[1]);
    ggml_set_input(other);   // it has room from the beginning
    ggml_set_output(other);  // to the end
  }
  return other;
}

ggml_tensor* Graph::feed_forward(const Weights& weights, PassData& pass, int layer, ggml_tensor*& residual,
                                 ggml_tensor* attended) {
  const LayerTensors& tensors = weights.layers()[static_cast<std::size_t>(layer)];
  const model::LayerWeights& names = pass.model->layers()[static_cast<std::size_t>(layer)];
  ggml_tensor* projected = multiply(pass, tensors.output, attended);
  const std::vector<ggml_tensor*> parts =
      project(tensors.gate_up.parts, residual, projected, names.ffn_norm, {&pass, layer, true, true}).parts;
  ggml_tensor* activated =
      parts.size() == 1 ? ggml_swiglu(context_.get(), parts[0]) : ggml_swiglu_split(context_.get(), parts[0], parts[1]);
  return multiply(pass, tensors.down, activated);
}

void Graph::add_logits(const Weights& weights, PassData& pass, ggml_tensor* residual, ggml_tensor* delta) {
  ggml_tensor* output = weights.output();
  logits_ = project({&output, 1}, residual, delta, &pass.model->output_norm(), {&pass}, true).parts[0];
  ggml_set_output(logits_);
  ggml_build_forward_expand(graph_, logits_);
}

void Graph::build(const Weights& weights, PassData& pass) {
  const model::Model& model = *pass.model;
  const model::Config& config = model.config();
  const std::int64_t q_width = static_cast<std::int64_t>(config.heads) * config.head_dim;

  tokens_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, shape_.rows);
  ggml_set_input(tokens_);
  ggml_tensor* residual = ggml_get_rows(context_.get(), weights.token_embedding(), tokens_);
  ggml_tensor* delta = nullptr;
  for (int l = 0; l < config.layers; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    const LayerTensors& tensors = weights.layers()[layer];
    const model::LayerWeights& names = model.layers()[layer];
    const bool last = l + 1 == config.layers;

    const Projected qkv = project(tensors.qkv.parts, residual, delta, names.attention_norm, {&pass, l});
    firsts_.push_back(qkv.first);
    ggml_tensor* query = custom(q_width, shape_.rows, qkv.parts, append_node, {&pass, l});
    if (last && shape_.outputs == 0 && !shape_.ends_attending && !shape_.keeps_rows) {
      ggml_build_forward_expand(graph_, query);  // nobody wants more of the chunk than its K and V
      return;
    }
    std::vector<ggml_tensor*> sources{query};
    if (shape_.selects[layer]) sources.push_back(custom(1, 1, {query}, select_node, {&pass, l}));
    ggml_tensor* attended = custom(q_width, shape_.rows, sources, attend_node, {&pass, l});
    if (last && shape_.keeps_rows) {
      ggml_set_output(residual_ = residual);
      ggml_set_output(attended_ = attended);
    }
    if (last && shape_.outputs == 0) {
      ggml_build_forward_expand(graph_, attended);
      return;
    }
    // The rest of the last layer only for rows with logits. What is kept is not changed.
    if (last && (shape_.outputs < shape_.rows || shape_.keeps_rows)) {
      ggml_tensor* rest = custom(config.hidden, shape_.outputs, {residual, attended}, gather_node, {&pass, l});
      attended = custom(q_width, shape_.outputs, {attended}, gather_node, {&pass, l});
      residual = rest;
    }
    delta = feed_forward(weights, pass, l, residual, attended);
  }
  add_logits(weights, pass, residual, delta);
}

}  // namespace glimpse::exec

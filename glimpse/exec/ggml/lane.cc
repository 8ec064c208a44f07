#include "glimpse/exec/ggml/lane.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::exec {
namespace {

/// Decoding, full chunks, a last chunk, and the same with a plan that selects: more shapes than these are rebuilt. That
/// takes 2 us a layer, under 1 % of any pass, so rows are not padded to fewer shapes; each graph kept holds
/// activations.
constexpr std::size_t kGraphsKept = 6;

}  // namespace

Lane::Lane(Machine& machine)
    : machine_(machine),
      rope_(machine.model.config().rope),
      runner_({machine.model.config().layers, machine.model.config().heads, machine.model.config().kv_heads,
               machine.model.config().head_dim, machine.threads, &rope_},
              machine.cache) {
  const auto threads = static_cast<std::size_t>(machine.threads);
  pass_.model = &machine.model;
  pass_.runner = &runner_;
  pass_.rope = &rope_;
  pass_.products.resize(threads);
  pass_.scratch.assign(threads,
                       std::vector<float>(static_cast<std::size_t>(2 * kAppendRows * machine.model.config().head_dim)));
}

void Lane::begin(const StepBatch& batch) {
  for (const std::int32_t token : batch.tokens) {
    check(token >= 0 && token < machine_.model.config().vocabulary, "a token id of the vocabulary");
  }
  graph_ = nullptr;
  runner_.begin(batch.sequences);
  positions_.clear();
  for (const attention::SequenceRows& sequence : batch.sequences) {
    check(sequence.first_row == static_cast<int>(positions_.size()), "rows follow the order of sequences");
    for (int row = 0; row < sequence.rows; ++row) positions_.push_back(sequence.position + row);
  }
  check(positions_.size() == batch.tokens.size(), "a token for each row");
  rope_.fill(positions_);
  pass_.sequences = batch.sequences;
  pass_.output_rows = batch.output_rows;
  pass_.rows = static_cast<int>(batch.tokens.size());
  sequences_ = batch.sequences.size();
  next_layer_ = 0;
  abandoned_ = false;

  graph_ = &graph_for(batch);
  pass_.narrow = [graph = graph_](int rows) { graph->set_rows(rows); };
  std::memcpy(graph_->tokens()->data, batch.tokens.data(), batch.tokens.size_bytes());
}

bool Lane::run(int layers) {
  const int all = machine_.model.config().layers;
  if (next_layer_ == 0 && layers >= all) {
    next_layer_ = all;
    abandoned_ = !compute(graph_->graph(), true);
  }
  for (int i = 0; i < layers && next_layer_ < all; ++i) {
    if (!compute(graph_->layer(next_layer_++), true)) {
      abandoned_ = true;
      next_layer_ = all;
    }
  }
  return next_layer_ >= all;
}

StepResult Lane::end() {
  if (pass_.rows != graph_->shape().rows) graph_->set_rows(graph_->shape().rows);
  if (abandoned_ || next_layer_ < machine_.model.config().layers) runner_.abandon();
  StepResult result;
  result.counters = runner_.end();
  for (std::size_t i = 0; i < sequences_; ++i) {
    std::exception_ptr failure = runner_.failure(i);
    if (!failure) continue;
    result.failures.resize(sequences_);
    result.failures[i] = std::move(failure);
  }
  if (graph_->logits() != nullptr) {
    result.logits = {static_cast<const float*>(graph_->logits()->data),
                     pass_.output_rows.size() * static_cast<std::size_t>(machine_.model.config().vocabulary)};
  }
  return result;
}

std::span<const float> Lane::logits_of(std::span<const std::int32_t> rows) {
  check(graph_ != nullptr && graph_->shape().keeps_rows && !rows.empty() && rows.size() <= kLogitRows,
        "rows of the last pass, which kept them");
  if (tail_ == nullptr) {
    tail_ = std::make_unique<Graph>(*graph_, machine_.weights, pass_);
  } else {
    tail_->read(*graph_);
  }
  // Always as many, so that a row's bits do not depend on how many there are.
  tail_rows_.assign(rows.begin(), rows.end());
  tail_rows_.resize(kLogitRows, rows.back());
  pass_.output_rows = tail_rows_;
  compute(tail_->graph(), false);
  return {static_cast<const float*>(tail_->logits()->data),
          rows.size() * static_cast<std::size_t>(machine_.model.config().vocabulary)};
}

Graph& Lane::graph_for(const StepBatch& batch) {
  const int layers = machine_.model.config().layers;
  key_.rows = static_cast<int>(batch.tokens.size());
  key_.outputs = static_cast<int>(batch.output_rows.size());
  key_.selects.resize(static_cast<std::size_t>(layers));
  for (int layer = 0; layer < layers; ++layer) {
    key_.selects[static_cast<std::size_t>(layer)] = runner_.needs_select(layer);
  }
  key_.keeps_rows = batch.keep_rows;
  key_.ends_attending = batch.output_rows.empty() && runner_.needs_attend(layers - 1);
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const std::unique_ptr<Graph>& graph) { return graph->shape() == key_; });
  if (found != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, found);
  } else {
    if (graphs_.size() == kGraphsKept) graphs_.pop_back();
    graphs_.push_front(std::make_unique<Graph>(key_, machine_.weights, pass_));
  }
  return *graphs_.front();
}

bool Lane::compute(ggml_cgraph* graph, bool stops) {
  ggml_cplan plan = ggml_graph_plan(graph, machine_.threads, machine_.pool.get());
  if (machine_.work.size() < plan.work_size) machine_.work.resize(plan.work_size);
  plan.work_data = machine_.work.data();
  if (stops) {
    plan.abort_callback = [](void* runner) { return static_cast<const attention::Runner*>(runner)->stopped(); };
    plan.abort_callback_data = &runner_;
  }
  ++pass_.run;
  const ggml_status status = ggml_graph_compute(graph, &plan);
  if (stops && status == GGML_STATUS_ABORTED) return false;
  check(status == GGML_STATUS_SUCCESS, "ggml runs a graph to its end");
  return true;
}

}  // namespace glimpse::exec

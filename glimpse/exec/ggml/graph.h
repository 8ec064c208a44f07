// One forward graph for one shape of pass, kept and run again. Owns its tensors' headers and activations; weights and
// pass data are borrowed. One thread at a time.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/exec/ggml/nodes.h"
#include "glimpse/exec/ggml/owned.h"
#include "glimpse/exec/ggml/weights.h"

struct ggml_cgraph;

namespace glimpse::exec {

/// What the structure of a graph depends on.
struct GraphShape {
  int rows = 0;
  int outputs = 0;
  std::vector<bool> selects;    ///< [layers] a select node before attending
  bool ends_attending = false;  ///< without outputs: the last layer attends for what it leaves in the state
  bool keeps_rows = false;      ///< what makes logits of any row is there when the graph has run
  friend bool operator==(const GraphShape&, const GraphShape&) = default;
};

class Graph {
 public:
  Graph(const GraphShape& shape, const Weights& weights, PassData& pass);
  /// What is behind the attention of the last layer, for kLogitRows rows that another graph has kept: those that
  /// PassData::output_rows names, of the graph that read() was told last.
  Graph(const Graph& kept, const Weights& weights, PassData& pass);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const GraphShape& shape() const { return shape_; }
  /// Nodes that have not run compute the first `rows` rows alone, at most those of the shape. Between two nodes; stays
  /// so until it is called again.
  void set_rows(int rows);
  ggml_cgraph* graph() const { return graph_; }
  /// The nodes of one layer; of the first one those before it, too, of the last one those behind it.
  ggml_cgraph* layer(int layer);
  ggml_tensor* tokens() const { return tokens_; }  ///< int32 [rows], written before each run
  ggml_tensor* logits() const { return logits_; }  ///< [vocabulary, outputs]; null without outputs
  void read(const Graph& kept);

 private:
  void allocate();
  void build(const Weights& weights, PassData& pass);
  /// Of a layer: all that comes behind its attention, as what it adds to the residual, to which it has added attention.
  ggml_tensor* feed_forward(const Weights& weights, PassData& pass, int layer, ggml_tensor*& residual,
                            ggml_tensor* attended);
  void add_logits(const Weights& weights, PassData& pass, ggml_tensor* residual, ggml_tensor* delta);
  using NodeFunction = void (*)(ggml_tensor*, int, int, void*);
  ggml_tensor* custom(std::int64_t width, std::int64_t rows, std::vector<ggml_tensor*> sources, NodeFunction function,
                      const NodeData& data);
  ggml_tensor* normalise(ggml_tensor* residual, ggml_tensor* delta, const model::TensorInfo* weight,
                         const NodeData& data);
  ggml_tensor* multiply(PassData& pass, ggml_tensor* weight, ggml_tensor* input);
  struct Projected {
    ggml_tensor* first;               ///< of its nodes
    std::vector<ggml_tensor*> parts;  ///< one product for each weight
  };
  /// `residual` with `delta` (or null) added, normalised, times each of the weights. `residual` becomes the sum, which
  /// is not kept when nobody reads it (`ends`).
  Projected project(std::span<ggml_tensor* const> weights, ggml_tensor*& residual, ggml_tensor* delta,
                    const model::TensorInfo* norm, const NodeData& data, bool ends = false);
  /// Room for a sum in place of `residual`.
  ggml_tensor* other_residual(const ggml_tensor* residual);
  ggml_tensor* weight_view(const model::TensorInfo* weight);

  GraphShape shape_;
  ContextPointer context_;
  ggml_cgraph* graph_ = nullptr;
  AllocatorPointer allocator_;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* logits_ = nullptr;
  ggml_tensor* sums_[2] = {};         ///< [hidden, rows] that take turns as residual where rows are few
  ggml_tensor* residual_ = nullptr;   ///< [hidden, rows] before the last layer's attention is added, where kept
  ggml_tensor* attended_ = nullptr;   ///< [H d, rows] of the last layer, where kept
  std::deque<NodeData> node_data_;    ///< addresses are given to nodes
  std::vector<ggml_tensor*> firsts_;  ///< [layers] the first node of each
  ContextPointer layers_context_;
  std::vector<ggml_cgraph*> layers_;       ///< [layers] once one was asked for
  std::vector<ggml_tensor*> row_tensors_;  ///< nodes [width, rows of the shape]
};

}  // namespace glimpse::exec

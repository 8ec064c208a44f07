// A forward pass of a model over a batch of sequences. The executor owns weights in the layout it computes with, its
// threads, graphs and activations; it borrows the model's mapping and the cache. One thread at a time calls forward().
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"
#include "glimpse/base/draw.h"
#include "glimpse/base/error.h"
#include "glimpse/exec/row_costs.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"

namespace glimpse::exec {

struct StepBatch {
  /// [rows], in the order of `sequences`. In launch() behind a pass that runs, -1 - i is the token that the device
  /// draws for that one's output row i.
  std::span<const std::int32_t> tokens;
  std::span<const attention::SequenceRows> sequences;
  std::span<const std::int32_t> output_rows;  ///< ascending rows whose logits are wanted; may be empty
  bool keep_rows = false;                     ///< logits_of() may be asked for others
  /// The caller reads so many of the largest logits of each output row and no more, kMostLeaders at most; 0: all.
  int leaders = 0;
  /// [output_rows] how the device draws their tokens from the leaders, for a pass that may be launched behind; empty:
  /// the largest, where one leader is asked for.
  std::span<const Draw> draws;
};

/// A token and its logit.
struct Leader {
  std::int32_t token = 0;
  float logit = 0;
};
inline constexpr int kMostLeaders = 128;

/// The most rows of a sequence in a pass that is launched behind another.
inline constexpr int kMostRowsBehind = 16;

/// That logits_of() gives at a time.
inline constexpr std::size_t kLogitRows = 64;

struct StepResult {
  std::span<const float> logits;  ///< [output_rows, vocabulary], valid until the next forward
  /// Instead of `logits`, where the batch asked for them, the device makes them and all logits are finite:
  /// [output_rows, leaders], of each row by ascending token; of equal logits those of the lower tokens. Of a pass
  /// behind which another one was launched always; the leader of a row that is not finite has the token -1.
  std::span<const Leader> leaders;
  std::span<const std::int32_t> drawn;  ///< [output_rows] tokens that the pass behind took; empty: there was none
  std::span<const attention::ReadCounters> counters;  ///< [sequences]
  std::vector<std::exception_ptr> failures;           ///< [sequences] null where it went well; empty: everywhere
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Throws what ended the pass for all sequences: a UserError when the cache is full, and nothing has changed then
  /// (began() is false); else caches are longer by the batch's rows, and states may have taken in some of them. What
  /// ended it for one sequence alone is in `failures`: the same holds for that one, and its logits mean nothing.
  virtual StepResult forward(const StepBatch& batch) = 0;
  /// A forward() in two halves, so that the host works while the device does: launch() queues the pass, collect() waits
  /// for the oldest one that was launched, and returns or throws what forward() would. Behind a pass that runs one more
  /// may be launched, of the same or fewer sequences. The one that runs has one row of each, which decodes; the other
  /// has such rows or verifies drafts, which the cache has lost then, by kMostRowsBehind rows of a sequence at most.
  /// Both ask for leaders, of which the device draws the tokens of the one that runs, and have rows that
  /// leave nothing on the host which the next pass needs (leaves_nothing(), at so many tokens and more). Rows of it are
  /// taken back by kv::Cache::truncate(), kv::KeyIndex::take_back() and attention::SequenceState::take_back_step().
  /// What launch() throws concerns the new pass alone. abandon() forgets all that was launched. False: the device has
  /// no such passes, and nobody calls these.
  virtual bool flies() const { return false; }
  virtual bool leaves_nothing(const attention::Program&, attention::PassKind, std::int64_t /*tokens*/) { return false; }
  virtual void launch(const StepBatch&) { check(false, "a device that queues passes"); }
  virtual StepResult collect() { return {}; }
  virtual void abandon() {}
  /// A forward() in slices of layers, between which forward() may be called for other sequences: with its bits, and one
  /// such pass at a time. begin_slices() throws as forward() does; the batch's spans stay until end_slices().
  /// run_slice() runs the next `layers` at most, true: none is left. end_slices() gives what forward() returns or
  /// throws; of a pass that has layers left every sequence fails as attention::Stopped. False: the device has no such
  /// passes, and nobody calls these.
  virtual bool slices() const { return false; }
  virtual void begin_slices(const StepBatch&) { check(false, "a device that runs slices"); }
  virtual bool run_slice(int) { return true; }
  virtual StepResult end_slices() { return {}; }
  /// After a forward() with `keep_rows` and before the next one: logits [rows, vocabulary] of 1 to kLogitRows of its
  /// rows, valid until the next call. The pass itself is as without `keep_rows`, bit for bit, and a row's logits are
  /// the same whichever others are asked for. Throws UserError when memory is short.
  virtual std::span<const float> logits_of(std::span<const std::int32_t> rows) = 0;
  /// True after a forward(), or a part of one, that threw when the pass had begun to change caches and states.
  virtual bool began() const = 0;
  /// Wall time of attention in all passes so far, as one thread saw it. Seconds; none where it is not measured.
  virtual std::optional<double> attention_seconds() const = 0;
  virtual RowCosts row_costs() const = 0;
  /// What attention did, head by head (see attention::HeadRecord), said behind the last layer by the thread that calls
  /// forward(); empty turns it off.
  virtual void set_on_head(std::function<void(const attention::HeadRecord&)> on_head) = 0;
  /// While on, passes sum up how far each layer's attention turns the residual stream; turning it on starts anew.
  virtual void measure_change(bool on) = 0;
  /// [layers] mean over rows of 1 - cosine(x, x + attention(x)), x the stream that enters the layer; 0 without rows.
  virtual std::vector<double> attention_change() const = 0;
};

struct CpuOptions {
  int threads = 1;
};
/// ggml's matrix products with our attention in one graph. Copies or repacks weights; throws UserError when memory is
/// short.
std::unique_ptr<Executor> make_cpu_executor(const model::Model& model, kv::Cache& cache, const CpuOptions& options);

}  // namespace glimpse::exec

// What a watched request read: its tokens, and of each decode step what every head read. docs/microscope.md is the
// users' page.
//
// The Service's thread writes it as a Watcher, any thread reads it. It keeps at most so many bytes of steps: the oldest
// are dropped. A step that is there never changes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "glimpse/engine/watcher.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::server {

struct WatchedToken {
  text::Token id = -1;
  std::string text;  ///< whole UTF-8: bytes of a character that a later token ends stand there
};

/// Lists are indices into WatchedStep::lists.
struct WatchedHead {
  static constexpr std::int32_t kNone = -1, kAll = -2;  ///< kAll: every token up to the step's position
  plan::RoleKind role = plan::RoleKind::dense;
  std::int64_t budget = 0;
  std::int32_t tokens = kNone, published = kNone;
  std::vector<std::int32_t> query_sets;  ///< a list for each query head, or none
  std::int64_t count = 0;                ///< tokens read
  std::optional<double> coverage;
};

struct WatchedStep {
  std::int64_t number = 0;         ///< of the request's decode steps, from 0
  std::int64_t position = 0;       ///< of the token whose query attended
  std::vector<WatchedHead> heads;  ///< [layer, kv_head]
  std::vector<std::string> lists;  ///< distinct ones, by pack_positions
  std::int64_t bytes_read = 0, index_bytes = 0, dense_bytes = 0;
  /// Softmax mass that the sets captured: of the heads where it was measured, else of the sets that were chosen from
  /// exact scores, whose least is not known.
  std::optional<double> coverage_mean, coverage_min;
  std::int64_t memory = 0;  ///< bytes that it takes
};

/// The request itself, which never changes.
struct WatchedRequest {
  plan::ModelShape shape;
  std::string policy, budget;  ///< budget: as --attn-budget has it; empty where the plan has none
  std::string kv_type;
  std::int64_t row_bytes = 0;                  ///< K and V of one token in one layer and KV head
  const text::Tokenizer* tokenizer = nullptr;  ///< outlives the record
  std::vector<text::Token> prompt;
  std::int64_t most_bytes = 0;  ///< of steps
};

class WatchRecord : public engine::Watcher {
 public:
  /// Reads the texts of the prompt's tokens: slow for a long one.
  explicit WatchRecord(WatchedRequest request);

  void sets(const engine::SetTrace& trace) noexcept override;
  void token(text::Token token) noexcept override;
  void step(const engine::AttentionStats& so_far) noexcept override;
  /// Nothing comes any more; the first reason stays.
  void end(std::string_view reason);

  const WatchedRequest& request() const { return request_; }
  const std::vector<WatchedToken>& prompt() const { return prompt_; }

  struct Progress {
    std::int64_t tokens = 0;                 ///< of the answer
    std::int64_t first_step = 0, steps = 0;  ///< kept are [first_step, steps)
    std::optional<std::string> reason;       ///< why it ended, once it has
  };
  Progress progress() const;
  /// Tokens of the answer from `first` on, at most `most`.
  std::vector<WatchedToken> tokens(std::int64_t first, std::int64_t most) const;
  /// Null for one that is not there yet, or not any more.
  std::shared_ptr<const WatchedStep> step_at(std::int64_t number) const;

 private:
  /// The place of a list of open_, which a head of `kv_head` read or published.
  std::int32_t list(std::span<const std::int32_t> positions, std::size_t kv_head);
  void note(const engine::SetTrace& trace);
  void close_step(const engine::AttentionStats& so_far);

  const WatchedRequest request_;
  std::vector<WatchedToken> prompt_;

  // The thread that writes alone.
  WatchedStep open_;
  std::unordered_map<std::string, std::int32_t> known_;  ///< lists of open_
  /// The list that a head noted last: layers that reuse a set note the same one again.
  struct Last {
    std::vector<std::int32_t> positions;
    std::int32_t place = WatchedHead::kNone;
  };
  std::vector<Last> last_;  ///< [kv_heads]
  std::int64_t noted_ = 0;  ///< heads of open_
  engine::AttentionStats before_;
  text::Utf8Stream texts_;
  std::int64_t made_ = 0;  ///< steps

  mutable std::mutex mutex_;
  std::vector<WatchedToken> answer_;
  std::deque<std::shared_ptr<const WatchedStep>> steps_;
  std::int64_t first_step_ = 0, bytes_ = 0;
  std::optional<std::string> reason_;
};

}  // namespace glimpse::server

// Thousands of random operations on sequences under every method: tokens appended one by one and in pieces, drafted,
// taken back, verified and kept in part, forked, corrected, and forgotten where the method forgets. A replay from the
// start does only what stayed; all that cache and state hold, and the next logits, must be its, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "glimpse/attention/saved_state.h"
#include "glimpse/base/error.h"
#include "glimpse/base/sanitizers.h"
#include "glimpse/engine/gates.h"
#include "glimpse/engine/model_shape.h"
#include "glimpse/exec/executor.h"
#include "glimpse/kv/inspect.h"
#include "glimpse/model/model.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

// One thread runs them: there is nothing to race with.
constexpr int kOperations = kThreadSanitizer ? 3'000 : 10'000;
constexpr std::size_t kLongest = 330;

/// What stayed of an operation.
struct Kept {
  enum class Kind : std::uint8_t { prompt, decode, verify, take_back, correct } kind;
  std::vector<Token> tokens;  ///< fed; corrected ones are not repeated
  std::size_t count = 0;      ///< corrected tokens, or those of the verified that stayed
};

struct Walker {
  kv::SequenceId id = -1;
  attention::SequenceState state;
  std::vector<Token> tokens;
  std::vector<Kept> kept;
};

class Walk {
 public:
  Walk(const std::string& policy, std::uint32_t seed)
      : model_(reference::test_model("llama")), cache_(cache_shape(model_)), random_(seed) {
    policies::PolicyOptions options;
    if (policy != "full") options = budget(policy == "seer" ? "128" : "48");
    add_needed(policy, reference::test_model("llama"), options);
    plan_ = policies::make_plan(policy, shape_of(model_.config()), options);
    load_gates(plan_, model_, gates_);
    program_ = std::make_unique<attention::Program>(plan_);
    whole_ = !plan::forgets(plan_);
    indexed_ = plan::searches_index(plan_);
    cache_.open_tier(testing::TempDir());
    executor_ = exec::make_cpu_executor(model_, cache_, {1});
  }

  bool whole() const { return whole_; }
  int operations() const { return operations_; }
  int taken_back() const { return taken_back_; }

  void begin() {
    end();
    walkers_.push_back(open());
    prompt(walkers_.back(), draw(60, 160));
  }

  void step() {
    const std::size_t chosen = static_cast<std::size_t>(draw(0, static_cast<int>(walkers_.size()) - 1));
    Walker& walker = walkers_[chosen];
    if (walker.tokens.size() > kLongest) return begin();
    const int kind = draw(0, 99);
    if (kind < 5) {
      prompt(walker, draw(1, 40));
    } else if (kind < 11 && walkers_.size() < 3) {
      fork(walker);
    } else if (kind < 16 && walkers_.size() > 1) {
      ++operations_;
      close(walker);
      walkers_.erase(walkers_.begin() + static_cast<std::ptrdiff_t>(chosen));
    } else if (kind < 26 && whole_) {
      const auto most = static_cast<int>(std::min<std::size_t>(walker.tokens.size(), 50));
      correct(walker, static_cast<std::size_t>(draw(1, most)));
    } else if (kind < 60 && whole_) {
      draft(walker);
    } else {
      decode(walker, token());
    }
  }

  /// Each sequence against its replay; then all are gone.
  void end() {
    while (!walkers_.empty()) {
      compare(walkers_.back());
      close(walkers_.back());
      walkers_.pop_back();
    }
  }

  kv::CacheUsage usage() const { return cache_.usage(); }

 private:
  static kv::CacheShape cache_shape(const model::Model& model) {
    kv::CacheShape shape;
    shape.layers = model.config().layers;
    shape.kv_heads = model.config().kv_heads;
    shape.format = {KvType::f32, model.config().head_dim};
    shape.capacity_tokens = 4096;
    return shape;
  }

  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  Token token() { return static_cast<Token>(draw(0, model_.config().vocabulary - 1)); }
  std::vector<Token> tokens(int count) {
    std::vector<Token> drawn;
    std::generate_n(std::back_inserter(drawn), count, [&] { return token(); });
    return drawn;
  }

  Walker open() {
    Walker walker;
    walker.id = cache_.create();
    walker.state = attention::SequenceState(plan_, gates_);
    return walker;
  }

  void close(Walker& walker) { cache_.destroy(walker.id); }

  std::vector<float> run(Walker& walker, attention::SequenceRows rows, std::span<const Token> fed) {
    const bool corrects = rows.kind == attention::PassKind::correct;
    rows.sequence = walker.id;
    rows.program = program_.get();
    rows.state = &walker.state;
    rows.rows = static_cast<int>(fed.size());
    rows.position = static_cast<std::int64_t>(walker.tokens.size()) - (corrects ? rows.rows : 0);
    rows.prompt_end = rows.position + rows.rows;
    const std::vector<Token> copy(fed.begin(), fed.end());
    if (!corrects) {
      for (const Token one : copy) {  // any rule that the token alone decides
        walker.state.boundaries.push_back(static_cast<Boundary>(1 + one % 5));
        walker.tokens.push_back(one);
      }
    }
    const std::int32_t last = rows.rows - 1;
    const exec::StepResult result = executor_->forward({copy, {&rows, 1}, {&last, 1}});
    for (const std::exception_ptr& failure : result.failures) {
      if (failure) std::rethrow_exception(failure);
    }
    return {result.logits.begin(), result.logits.end()};
  }

  void take_back_to(Walker& walker, std::size_t length) {
    cache_.truncate(walker.id, static_cast<std::int64_t>(walker.tokens.size() - length));
    walker.tokens.resize(length);
    walker.state.boundaries.resize(length);
  }

  void prompt(Walker& walker, int count) {
    ++operations_;
    const std::vector<Token> fed = tokens(count);
    attention::SequenceRows rows;
    rows.kind = attention::PassKind::prompt;
    run(walker, rows, fed);
    walker.kept.push_back({Kept::Kind::prompt, fed});
  }

  std::vector<float> decode(Walker& walker, Token one) {
    ++operations_;
    walker.kept.push_back({Kept::Kind::decode, {one}});
    return run(walker, {}, {&one, 1});
  }

  void correct(Walker& walker, std::size_t count) {
    ++operations_;
    attention::SequenceRows rows;
    rows.kind = attention::PassKind::correct;
    run(walker, rows, std::span(walker.tokens).last(count));
    walker.kept.push_back({Kept::Kind::correct, {}, count});
  }

  void fork(Walker& walker) {
    ++operations_;
    Walker copy;
    copy.id = cache_.fork(walker.id);
    copy.state = walker.state;
    copy.tokens = walker.tokens;
    copy.kept = walker.kept;
    walkers_.push_back(std::move(copy));
  }

  /// Drafts; then all is taken back, or a dense pass over the drafts keeps a part of them.
  void draft(Walker& walker) {
    const std::vector<Token> rows = tokens(draw(2, 6));
    const std::size_t base = walker.tokens.size();
    const std::size_t drafts = rows.size() - 1;
    run_drafts(walker, std::span(rows).first(drafts));
    operations_ += static_cast<int>(drafts) + 1;
    if (draw(0, 2) == 0) {
      walker.state.drafted_heat.clear();
      ++taken_back_;
      if (indexed_) walker.kept.push_back({Kept::Kind::take_back, {}});
      return;
    }
    const auto kept = static_cast<std::size_t>(draw(1, static_cast<int>(rows.size())));
    verify(walker, rows, kept);
    ASSERT_EQ(walker.tokens.size(), base + kept);
    walker.kept.push_back({Kept::Kind::verify, rows, kept});
  }

  void run_drafts(Walker& walker, std::span<const Token> drafts) {
    attention::SequenceRows rows;
    const std::size_t base = walker.tokens.size();
    rows.kind = attention::PassKind::draft;
    rows.committed = static_cast<std::int64_t>(base);
    for (const Token& one : drafts) run(walker, rows, {&one, 1});
    take_back_to(walker, base);
  }

  void verify(Walker& walker, std::span<const Token> fed, std::size_t kept) {
    attention::SequenceRows rows;
    rows.kind = attention::PassKind::verify;
    const std::size_t base = walker.tokens.size();
    run(walker, rows, fed);
    take_back_to(walker, base + kept);
    walker.state.commit_drafts(static_cast<std::int64_t>(kept), static_cast<std::int64_t>(walker.tokens.size()),
                               plan_.heat.decay);
  }

  Walker replay(const std::vector<Kept>& log) {
    Walker walker = open();
    for (const Kept& entry : log) {
      attention::SequenceRows rows;
      switch (entry.kind) {
        case Kept::Kind::prompt:
          rows.kind = attention::PassKind::prompt;
          run(walker, rows, entry.tokens);
          break;
        case Kept::Kind::decode:
          run(walker, rows, entry.tokens);
          break;
        case Kept::Kind::correct:
          rows.kind = attention::PassKind::correct;
          run(walker, rows, std::span(walker.tokens).last(entry.count));
          break;
        case Kept::Kind::verify: {
          // As many rows, for a matrix product's last bits depend on their number; but other ones where none stayed.
          std::vector<Token> fed = entry.tokens;
          std::generate(fed.begin() + static_cast<std::ptrdiff_t>(entry.count), fed.end(), [&] { return token(); });
          // Heat comes from what drafts read; nothing else does.
          const std::size_t drafts = std::min(entry.count, fed.size() - 1);
          if (walker.state.heat.any()) run_drafts(walker, std::span(fed).first(drafts));
          if (indexed_) run_drafts(walker, tokens(1));
          verify(walker, fed, entry.count);
          break;
        }
        case Kept::Kind::take_back:  // a search lets the index grow to what is there; by what, does not matter
          run_drafts(walker, tokens(1));
      }
    }
    return walker;
  }

  void compare(Walker& walker) {
    Walker anew = replay(walker.kept);
    ASSERT_EQ(anew.tokens, walker.tokens);
    ASSERT_EQ(cache_.length(walker.id), static_cast<std::int64_t>(walker.tokens.size()));
    for (int layer = 0; layer < plan_.shape.layers; ++layer) {
      for (int head = 0; head < plan_.shape.kv_heads; ++head) {
        compare_head(walker, anew, layer, head);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    ByteWriter got, want;
    attention::save_state(walker.state, plan_, got);
    attention::save_state(anew.state, plan_, want);
    ASSERT_TRUE(std::equal(got.bytes().begin(), got.bytes().end(), want.bytes().begin(), want.bytes().end()))
        << "the states part at byte "
        << std::mismatch(got.bytes().begin(), got.bytes().end(), want.bytes().begin(), want.bytes().end()).first -
               got.bytes().begin()
        << " of " << got.bytes().size() << " and " << want.bytes().size();
    const Token one = token();
    EXPECT_EQ(decode(walker, one), decode(anew, one));
    close(anew);
  }

  void compare_head(const Walker& walker, const Walker& anew, int layer, int head) {
    cache_.recall_all(walker.id);
    cache_.recall_all(anew.id);
    const std::vector<std::int32_t> live = kv::live_positions(cache_, walker.id, layer, head);
    ASSERT_EQ(live, kv::live_positions(cache_, anew.id, layer, head)) << "layer " << layer << " head " << head;
    for (const std::int32_t position : live) {
      ASSERT_EQ(kv::key_at(cache_, walker.id, layer, head, position),
                kv::key_at(cache_, anew.id, layer, head, position))
          << "layer " << layer << " head " << head << " position " << position << " of " << walker.tokens.size();
      ASSERT_EQ(kv::value_at(cache_, walker.id, layer, head, position),
                kv::value_at(cache_, anew.id, layer, head, position))
          << "layer " << layer << " head " << head << " position " << position << " of " << walker.tokens.size();
    }
  }

  model::Model model_;
  kv::Cache cache_;
  plan::Plan plan_;
  std::unique_ptr<attention::Program> program_;
  bool whole_ = false;    ///< keeps every token: drafts and corrections are allowed
  bool indexed_ = false;  ///< some head searches an index
  attention::GateFiles gates_;
  std::unique_ptr<exec::Executor> executor_;
  std::mt19937 random_;
  std::vector<Walker> walkers_;
  int operations_ = 0;
  int taken_back_ = 0;
};

class Marks : public testing::TestWithParam<std::string> {};

TEST_P(Marks, ARandomWalkIsItsReplay) {
  const int wanted = kOperations / static_cast<int>(policies::registry().size()) + 1;
  Walk walk(GetParam(), 17);
  walk.begin();
  while (walk.operations() < wanted) {
    walk.step();
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "after operation " << walk.operations();
  }
  walk.end();
  if (walk.whole()) {
    EXPECT_GT(walk.taken_back(), 5);
  }
  EXPECT_EQ(walk.usage().pages_free, walk.usage().pages_total);
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) names.emplace_back(policy.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Methods, Marks, testing::ValuesIn(names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace glimpse::engine

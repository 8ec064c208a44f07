// A program against the plan that it was made from, read by the words of plan.h; and the capacities of its sets against
// the sets that steps publish.
#include "glimpse/attention/program.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;

std::vector<plan::Plan> plans(const plan::ModelShape& shape) {
  std::vector<plan::Plan> all;
  for (const policies::Policy& policy : policies::registry()) {
    for (const char* budget : {"", "96", "10%,min=64"}) {
      policies::PolicyOptions options;
      for (const policies::OptionHelp& row : policy.options) {
        if (row.needed) options.extra.emplace(std::string(row.key), "some.gguf");
      }
      if (*budget != '\0') options.budget = plan::parse_budget(budget);
      try {
        all.push_back(policies::make_plan(policy.name, shape, options));
      } catch (const UserError&) {
        EXPECT_STRNE(budget, "") << policy.name;  // a budget of a kind that the method has no use for
      }
    }
  }
  return all;
}

/// The slot that a selecting head publishes in.
plan::SlotId slot_of(const plan::Plan& plan, int layer, int head) {
  const auto& selector = plan.selectors[static_cast<std::size_t>(plan.role(layer, head).selector)];
  return {layer, selector.per == plan::SetPer::layer ? 0 : head};
}

void expect_head(const plan::Plan& plan, const Program& program, int layer, int head) {
  const plan::Role& role = plan.role(layer, head);
  const HeadOp& op = program.head(layer, head);
  EXPECT_EQ(op.role, role.kind);
  ASSERT_EQ(op.kept != nullptr, role.retention >= 0);
  if (op.kept != nullptr) {
    EXPECT_EQ(*op.kept, plan.retentions[static_cast<std::size_t>(role.retention)]);
  }
  ASSERT_EQ(op.select >= 0, role.kind == RoleKind::select);
  switch (role.kind) {
    case RoleKind::dense:
      EXPECT_EQ(op.reads, HeadOp::Reads::everything);
      EXPECT_EQ(op.budget, nullptr);
      break;
    case RoleKind::stream:
      EXPECT_EQ(op.reads, HeadOp::Reads::window);
      EXPECT_EQ(*op.window, plan.selectors[static_cast<std::size_t>(role.selector)]);
      break;
    case RoleKind::reuse:
      EXPECT_EQ(op.reads, HeadOp::Reads::set);
      EXPECT_EQ(op.set, slot_of(plan, role.reads.layer, role.reads.head));
      break;
    case RoleKind::select: {
      const plan::Selector& selector = plan.selectors[static_cast<std::size_t>(role.selector)];
      const SelectOp& select = program.select(layer, head);
      EXPECT_EQ(*select.selector, selector);
      EXPECT_EQ(select.writes, slot_of(plan, layer, head));
      EXPECT_LE(select.first_head, head);
      EXPECT_GT(select.first_head + select.heads, head);
      EXPECT_EQ(select.lists, selector.per == plan::SetPer::query_head ? plan.shape.group() : 1);
      EXPECT_EQ(select.from == SelectOp::From::index, plan::is_index(selector.terms.front().source));
      EXPECT_EQ(select.joins, role.reads);
      EXPECT_EQ(op.reads, role.attends_set ? HeadOp::Reads::set : HeadOp::Reads::everything);
      if (role.attends_set) {
        EXPECT_EQ(op.set, select.writes);
      }
    }
  }
}

TEST(Program, SaysOfEveryHeadWhatItsPlanSays) {
  int selecting = 0;
  for (const plan::ModelShape& shape :
       {plan::ModelShape{"llama", "", 32, 32, 8, 128, 131072}, plan::ModelShape{"llama", "", 30, 9, 3, 64, 8192},
        plan::ModelShape{"llama", "", 3, 4, 4, 32, 4096}}) {
    for (const plan::Plan& plan : plans(shape)) {
      SCOPED_TRACE(plan.policy);
      const Program program(plan);
      EXPECT_EQ(program.plan(), plan);
      for (int layer = 0; layer < shape.layers; ++layer) {
        for (int head = 0; head < shape.kv_heads; ++head) expect_head(plan, program, layer, head);
        // Each selecting head has a part in one operation of its layer.
        std::vector<int> parts(static_cast<std::size_t>(shape.kv_heads));
        for (const SelectOp& select : program.layer(layer).selects) {
          ASSERT_EQ(select.queries.size(), static_cast<std::size_t>(select.heads));
          for (int i = 0; i < select.heads; ++i) ++parts[static_cast<std::size_t>(select.first_head + i)];
        }
        for (int head = 0; head < shape.kv_heads; ++head) {
          ASSERT_EQ(parts[static_cast<std::size_t>(head)], plan.role(layer, head).kind == RoleKind::select);
          selecting += parts[static_cast<std::size_t>(head)];
        }
      }
      for (const std::int64_t tokens : {1, 96, 97, 500, 1000, 100000}) {
        EXPECT_EQ(program.dense_at(tokens), plan::is_dense_at(plan, tokens)) << tokens;
      }
    }
  }
  EXPECT_GT(selecting, 1000);
}

/// Query heads that score for a layer's set where several candidates make it (LessIsMore, EvoSparse), else 0.
int scoring_heads(const plan::Plan& plan, int layer) {
  const plan::Role& role = plan.role(layer, 0);
  const plan::Selector& how = plan.selectors[static_cast<std::size_t>(role.selector)];
  const plan::Term& first = how.terms.front();
  const bool heat = std::any_of(how.terms.begin(), how.terms.end(),
                                [](const plan::Term& term) { return term.source == plan::Source::heat; });
  if (how.per != plan::SetPer::layer) return 0;
  const bool united = how.terms.size() > 1 || first.budget.has_value() || heat || role.reads.layer >= 0 ||
                      first.heads == plan::HeadPooling::rank_merge;
  if (!united || first.source == plan::Source::heat) return 0;
  return first.query_heads.empty() ? plan.shape.heads : static_cast<int>(first.query_heads.size());
}

/// What a head reads of so many tokens, by the words of its plan. `first`: where the sets of slots are numbered from.
kernels::Read read_of(const plan::Plan& plan, plan::SlotId at, std::int64_t tokens,
                      const std::map<plan::SlotId, int>& first) {
  const plan::Role& role = plan.role(at.layer, at.head);
  kernels::Read read;
  if (role.kind == RoleKind::stream) {
    const plan::Selector& window = plan.selectors[static_cast<std::size_t>(role.selector)];
    if (window.sink + plan::window_tokens(window, tokens) >= tokens) return read;
    read.kind = kernels::Read::Kind::window;
    read.sink = window.sink;
    read.local = static_cast<std::int32_t>(plan::window_tokens(window, tokens));
  } else if (role.kind == RoleKind::reuse || role.attends_set) {
    const plan::SlotId slot = role.kind == RoleKind::reuse ? role.reads : slot_of(plan, at.layer, at.head);
    const plan::Role& maker = plan.role(slot.layer, slot.head);
    const plan::Selector& how = plan.selectors[static_cast<std::size_t>(maker.selector)];
    read.kind = kernels::Read::Kind::sets;
    read.set = first.at(slot);
    read.per_query = how.per == plan::SetPer::query_head && plan.shape.group() > 1 ? 1 : 0;
    read.settled = slot.layer < at.layer ? 1 : 0;
  }
  return read;
}

TEST(Program, HeadsReadWhatTheirRolesSayAtALength) {
  std::map<kernels::Read::Kind, int> seen;
  for (const plan::Plan& plan : plans({"llama", "", 30, 9, 3, 64, 8192})) {
    SCOPED_TRACE(plan.policy);
    const Program program(plan);
    std::map<plan::SlotId, int> first;
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      for (const SelectOp& select : program.layer(layer).selects) first[select.writes] = 7 + select.first_set;
      for (int head = 0; head < plan.shape.kv_heads; ++head) {
        for (const std::int64_t tokens : {4, 96, 3000}) {
          const kernels::Read read = program.head(layer, head).read_at(tokens, 7);
          const kernels::Read wanted = read_of(plan, {layer, head}, tokens, first);
          EXPECT_EQ(read.kind, wanted.kind);
          EXPECT_EQ(read.set, wanted.set);
          EXPECT_EQ(read.per_query, wanted.per_query);
          EXPECT_EQ(read.settled, wanted.settled);
          EXPECT_EQ(read.sink, wanted.sink);
          EXPECT_EQ(read.local, wanted.local);
          ++seen[read.kind];
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u);  // nothing is what no role reads
}

TEST(Program, WhatReadsASetComesAfterWhatMakesIt) {
  for (const plan::Plan& plan : plans({"llama", "", 32, 32, 8, 128, 131072})) {
    const Program program(plan);
    std::set<plan::SlotId> made;
    int lists = 0;
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      for (const SelectOp& select : program.layer(layer).selects) {
        if (select.joins.layer >= 0) {
          EXPECT_EQ(made.count(select.joins), 1u) << plan.policy;
        }
      }
      for (const SelectOp& select : program.layer(layer).selects) {
        made.insert(select.writes);
        EXPECT_EQ(select.first_set, lists) << plan.policy;
        lists += select.lists + select.parts;
        EXPECT_EQ(select.parts, scoring_heads(plan, select.writes.layer)) << plan.policy;
        EXPECT_GE(set_capacity(program, 5000), select.capacity(5000)) << plan.policy;
      }
      for (const HeadOp& op : program.layer(layer).heads) {
        if (op.reads == HeadOp::Reads::set) {
          EXPECT_EQ(made.count(op.set), 1u) << plan.policy;
        }
      }
    }
    EXPECT_EQ(set_count(program), lists) << plan.policy;
  }
}

/// Random rows through a runner of one plan.
class Steps {
 public:
  explicit Steps(const plan::Plan& plan)
      : shape_(plan.shape),
        program_(plan),
        cache_({shape_.layers, shape_.kv_heads, {KvType::bf16, shape_.head_dim}, 4096}),
        runner_({shape_.layers, shape_.heads, shape_.kv_heads, shape_.head_dim, 1, &rotation_}, cache_),
        state_(plan),
        sequence_(cache_.create()) {
    cache_.open_tier(testing::TempDir());
    runner_.on_head = [this](const HeadRecord& record) { see(record); };
  }

  void run(int rows, PassKind kind) {
    SequenceRows entry{.sequence = sequence_, .program = &program_, .state = &state_, .rows = rows, .kind = kind};
    entry.position = cache_.length(sequence_);
    entry.prompt_end = entry.position + rows;
    for (int i = 0; i < rows; ++i) state_.boundaries.push_back(static_cast<Boundary>(1 + random_() % 5));
    runner_.begin({&entry, 1});
    std::vector<float> out(static_cast<std::size_t>(rows * shape_.heads * shape_.head_dim));
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::vector<float> k = made(rows * shape_.head_dim), v = made(rows * shape_.head_dim);
        runner_.append({layer, head, 0, 0, rows, k.data(), v.data(), static_cast<std::size_t>(shape_.head_dim)});
      }
      runner_.appended(layer, 1);
      const std::vector<float> q = made(rows * shape_.heads * shape_.head_dim);
      if (runner_.needs_select(layer)) runner_.select(layer, q.data(), 0, 1);
      runner_.attend(layer, q.data(), out.data(), 0, 1);
    }
    runner_.end();
  }

  int sets = 0;  ///< that had lists
  int full = 0;  ///< that used their capacity whole

 private:
  struct Turn final : kernels::Rotation {
    void prepare(std::int64_t) override {}
    void turn(std::int64_t, float*) const override {}
    void turn_back(std::int64_t, float*) const override {}
  };

  std::vector<float> made(int count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = normal(random_);
    return values;
  }

  void see(const HeadRecord& record) {
    if (record.published == nullptr || record.published->everything) return;
    const SelectOp& select = program_.select(record.layer, record.kv_head);
    const std::int64_t capacity = select.capacity(record.position + 1);
    EXPECT_LE(capacity, record.position + 1);
    ASSERT_EQ(record.published->lists.size(), static_cast<std::size_t>(select.lists));
    for (const auto& list : record.published->lists) {
      EXPECT_LE(static_cast<std::int64_t>(list.size()), capacity) << record.layer << " " << record.kv_head;
      ++sets;
      full += static_cast<std::int64_t>(list.size()) == capacity;
    }
  }

  plan::ModelShape shape_;
  Program program_;
  kv::Cache cache_;
  Turn rotation_;
  Runner runner_;
  SequenceState state_;
  kv::SequenceId sequence_;
  std::mt19937 random_{7};
};

TEST(Program, NoSetIsLargerThanItsCapacity) {
  int methods = 0;
  for (const plan::Plan& plan : plans({"llama", "", 6, 8, 2, 32, 4096})) {
    if (plan.policy == "seer") continue;  // its gates are a file
    SCOPED_TRACE(plan.policy);
    Steps steps(plan);
    steps.run(700, PassKind::prompt);
    for (int step = 0; step < 20; ++step) steps.run(1, PassKind::decode);
    methods += steps.sets > 0;
    if (steps.sets > 0 && plan.policy == "tidal") {
      EXPECT_EQ(steps.full, steps.sets);  // the bound is not a loose one
    }
  }
  EXPECT_GT(methods, 20);
}

}  // namespace
}  // namespace glimpse::attention

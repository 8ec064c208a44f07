#include "tests/engine/recording.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

constexpr const char* kPassage =
    "The ferry left the old harbour a little before seven, when the lamps along the quay were still burning. Marta had "
    "counted the boxes twice: eleven of seed potatoes, four of glass jars packed in straw, and one, smaller than the "
    "rest, that her uncle had sealed with red wax and told her not to open. The captain wrote 16 in his book, then "
    "crossed it out and wrote 17, because of the dog. By noon the wind had turned. It came over the cliffs in short, "
    "cold gusts, and the gulls went inland in twos and threes. \"If it holds,\" said the captain, \"we shall be at "
    "Lindholm by four; if it does not, we shall be there tomorrow, and wet.\" Nobody laughed. Marta sat on the box "
    "with "
    "the red seal and thought of the letter that she had found behind the clock: three lines, no name, and a number, "
    "4096, written so hard that the pen had torn the paper. What would her uncle want with such a number? He had "
    "never owned a telephone, he kept no account at any bank, and the street where he lived had only nineteen houses. "
    "At two the rain began. The dog crept under a bench, the jars rang softly against each other, and from the bow a "
    "boy called out that he could see the light on the Lindholm rock. The captain looked at his watch, then at the "
    "sky, and then, for the first time that day, at the box. \"Tell me,\" he said to Marta, \"did he give you the key "
    "as well?\"";

/// What Sequence gained with the methods that carry state; a build without it has no state to compare.
template <class S>
methods::Scores heat_of(const S& sequence, int layer) {
  if constexpr (requires { sequence.heat(layer); }) {
    const auto heat = sequence.heat(layer);
    return {heat.begin(), heat.end()};
  } else {
    throw UserError("this engine has no heat to compare");
  }
}

template <class S>
methods::Scores statistic_of(const S& sequence, int layer, int head) {
  if constexpr (requires { sequence.statistic(layer, head); }) {
    const auto statistic = sequence.statistic(layer, head);
    return {statistic.begin(), statistic.end()};
  } else {
    throw UserError("this engine has no retention statistics to compare");
  }
}

template <class S>
methods::Set live_of(const S& sequence, int layer, int head) {
  if constexpr (requires { sequence.live(layer, head); }) {
    const auto live = sequence.live(layer, head);
    return {live.begin(), live.end()};
  } else {
    throw UserError("this engine does not tell which tokens are live");
  }
}

bool has_heat(const plan::Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const plan::Selector& selector) {
    return std::any_of(selector.terms.begin(), selector.terms.end(),
                       [](const plan::Term& term) { return term.source == plan::Source::heat; });
  });
}

bool has_statistic(const plan::Plan& plan) {
  return std::any_of(plan.retentions.begin(), plan.retentions.end(), [](const plan::Retention& retention) {
    return retention.rule == plan::RetentionRule::accumulated ||
           retention.rule == plan::RetentionRule::last_probability || retention.rule == plan::RetentionRule::stamps;
  });
}

methods::Row key_row(const Sequence& sequence, int layer, int head, std::int64_t position) {
  try {
    const std::vector<float> key = sequence.key(layer, head, position);
    return {key.begin(), key.end()};
  } catch (const UserError&) {
    return {};  // evicted
  }
}

HeadStep copy_of(const SetTrace& trace, int dim) {
  HeadStep copy{trace.role,
                trace.budget,
                trace.reads_all,
                trace.publishes,
                trace.publishes_all,
                {trace.tokens.begin(), trace.tokens.end()},
                {trace.published.begin(), trace.published.end()},
                {trace.query_sets.begin(), trace.query_sets.end()},
                {}};
  for (std::size_t at = 0; at < trace.query.size(); at += static_cast<std::size_t>(dim)) {
    copy.queries.emplace_back(trace.query.begin() + static_cast<std::ptrdiff_t>(at),
                              trace.query.begin() + static_cast<std::ptrdiff_t>(at) + dim);
  }
  return copy;
}

methods::Set everything(std::int64_t tokens) {
  return methods::sink_and_window(tokens, 0, tokens);
}

/// The beginning of a passage under dense attention, and the logits of its last token.
struct Start {
  Sequence sequence;
  std::vector<float> logits;
};

/// An engine, and the starts that its recordings have in common.
struct Shared {
  Engine engine;
  std::map<std::size_t, Start> starts;  ///< by length

  // One thread: the sets are the same for any number, and ctest runs a test for each core already.
  explicit Shared(const std::filesystem::path& path) : engine(options_for(path, KvType::bf16, 1)) {}

  const Start& start(std::span<const Token> tokens) {
    const auto found = starts.find(tokens.size());
    if (found != starts.end()) return found->second;
    Sequence sequence = engine.open(plan::dense_plan(engine.shape()));
    const std::span<const float> logits = sequence.prefill(tokens);
    Start start{std::move(sequence), {logits.begin(), logits.end()}};
    return starts.emplace(tokens.size(), std::move(start)).first->second;
  }
};

Shared& shared(const std::string& model) {
  static std::map<std::string, std::unique_ptr<Shared>> engines;
  const std::filesystem::path path = recorded_model(model);
  std::unique_ptr<Shared>& found = engines[path.string()];
  if (!found) found = std::make_unique<Shared>(path);
  return *found;
}

/// How many of the first `tokens` are taken from a dense prefill. None where the plan makes something while they run
/// that could be made late, too: an index, a statistic.
std::int64_t dense_tokens(const plan::Plan& plan, std::int64_t tokens) {
  const auto indexed = [](const plan::Selector& selector) {
    return std::any_of(selector.terms.begin(), selector.terms.end(),
                       [](const plan::Term& term) { return plan::is_index(term.source); });
  };
  const bool kept = !plan.retentions.empty() || std::any_of(plan.selectors.begin(), plan.selectors.end(), indexed);
  return kept ? 0 : plan.prefill.dense_tokens(tokens);
}

}  // namespace

std::filesystem::path recorded_model(const std::string& model) {
  const std::filesystem::path path = model.empty() && !kSanitized ? reference::embedded_model() : "";
  return path.empty() ? reference::test_model(model.empty() ? "llama" : model) : path;
}

Engine& shared_engine(const std::string& model) {
  return shared(model).engine;
}

std::vector<Token> passage(const Engine& engine) {
  // The random models have a vocabulary of hardly any words: they get random tokens.
  if (engine.tokenizer().size() < 4096) return random_tokens(320, engine.tokenizer().size(), 11);
  return engine.tokenizer().encode(kPassage, text::Special::as_text, true);
}

StateCopy state_of(const Sequence& sequence, const plan::Plan& plan) {
  StateCopy state;
  if (has_heat(plan)) {
    for (int layer = 0; layer < (plan.heat.per_layer ? plan.shape.layers : 1); ++layer) {
      state.heat.push_back(heat_of(sequence, layer));
    }
  }
  if (has_statistic(plan)) {
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      for (int head = 0; head < plan.shape.kv_heads; ++head) {
        state.statistic.push_back(statistic_of(sequence, layer, head));
        state.live.push_back(live_of(sequence, layer, head));
      }
    }
  }
  return state;
}

Recording record_run(const std::string& policy, const policies::PolicyOptions& options, const RunOptions& how) {
  return record_run(make(shared_engine(how.model), policy, options), how);
}

Recording record_run(const plan::Plan& plan, const RunOptions& how) {
  Engine& engine = shared_engine(how.model);
  Recording run;
  run.plan = plan;
  const plan::ModelShape& shape = run.plan.shape;
  const std::vector<Token> tokens = passage(engine);
  const std::size_t prefilled = tokens.size() - static_cast<std::size_t>(how.replayed);
  run.prompt = static_cast<std::int64_t>(prefilled);
  const auto dense = static_cast<std::size_t>(dense_tokens(run.plan, run.prompt));
  const Start* start = dense > 0 ? &shared(how.model).start(std::span(tokens).first(dense)) : nullptr;
  Sequence sequence = start != nullptr ? start->sequence.fork(run.plan) : engine.open(run.plan);
  const std::span<const float> first =
      dense == prefilled ? start->logits : sequence.prefill(std::span(tokens).subspan(dense, prefilled - dense));
  auto token = static_cast<Token>(std::max_element(first.begin(), first.end()) - first.begin());
  run.keys.resize(run.index(shape.layers, 0));
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (std::int64_t i = 0; i < run.prompt; ++i) {
        run.keys[run.index(layer, head)].push_back(key_row(sequence, layer, head, i));
      }
    }
  }
  StepRecord* current = nullptr;
  sequence.on_sets([&](const SetTrace& trace) {
    current->step = trace.step;
    current->position = trace.position;
    const std::size_t at = run.index(trace.layer, trace.kv_head);
    current->heads.at(at) = copy_of(trace, shape.head_dim);
    run.keys.at(at).push_back(key_row(sequence, trace.layer, trace.kv_head, trace.position));
  });
  for (int step = 0; step < how.steps; ++step) {
    run.steps.emplace_back();
    current = &run.steps.back();
    current->heads.resize(run.keys.size());
    current->before = step == 0 ? state_of(sequence, run.plan) : run.steps[run.steps.size() - 2].after;
    const std::size_t at = prefilled + static_cast<std::size_t>(step);
    const std::span<const float> logits = sequence.decode(at < tokens.size() ? tokens[at] : token);
    token = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    current->after = state_of(sequence, run.plan);
  }
  return run;
}

methods::Rows Recording::keys_at(const StepRecord& step, int layer, int head) const {
  const methods::Rows& all = keys.at(index(layer, head));
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(step.position) + 1};
}

methods::Frame frame_of(const plan::Selector& selector, std::int64_t tokens) {
  methods::Frame frame;
  switch (selector.budget.rule) {
    case plan::BudgetRule::tokens:
      frame.value = selector.budget.value;
      break;
    case plan::BudgetRule::ratio:
      frame.value = static_cast<double>(
          std::max<std::int64_t>(selector.budget.at_least, methods::floor_share(selector.budget.value, tokens)));
      break;
    case plan::BudgetRule::mass:
      frame.rule = methods::Rule::mass;
      frame.value = selector.budget.value;
      break;
    case plan::BudgetRule::threshold:
      frame.rule = methods::Rule::threshold;
      frame.value = selector.budget.value;
      break;
  }
  frame.block = selector.block;
  frame.sink = selector.sink;
  frame.local = std::max(selector.local, 1);
  frame.counts_local = selector.counts_local;
  if (selector.local_share > 0) {
    const double share = std::ceil(selector.local_share * frame.value - 1e-9);
    frame.local = std::max<std::int64_t>(1, static_cast<std::int64_t>(share) - selector.sink);
  }
  return frame;
}

const plan::Selector& selector_of(const Recording& run, int layer, int head) {
  return run.plan.selectors.at(static_cast<std::size_t>(run.plan.role(layer, head).selector));
}

int scaled_layer(int layer_of_32, const plan::ModelShape& shape) {
  return static_cast<int>(std::lround(layer_of_32 * shape.layers / 32.0));
}

std::string place(const StepRecord& step, int layer, int head) {
  return fmt::format("position {}, layer {}, head {}", step.position, layer, head);
}

int expect_selected(const Recording& run, const Pooling& pooling) {
  int compared = 0;
  const plan::ModelShape& shape = run.plan.shape;
  for (const StepRecord& step : run.steps) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      std::vector<methods::Scores> heads;
      for (int head = 0; head < shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        if (record.role != plan::RoleKind::select) continue;
        const std::string where = place(step, layer, head);
        const plan::Selector& selector = selector_of(run, layer, head);
        const methods::Frame frame = frame_of(selector, step.position + 1);
        const methods::Rows keys = run.keys_at(step, layer, head);
        const HeadStep& slot = selector.per == plan::SetPer::layer ? run.at(step, layer, 0) : record;
        EXPECT_TRUE(slot.publishes || run.plan.role(layer, head).attends_set) << where;
        methods::Set own = slot.publishes_all ? everything(step.position + 1) : slot.published;
        if (!slot.publishes) own = record.tokens;
        if (selector.per == plan::SetPer::query_head) {
          EXPECT_EQ(record.query_sets.size(), record.queries.size()) << where;
          own.clear();
          for (std::size_t j = 0; j < record.query_sets.size(); ++j) {
            const methods::Set& set = record.query_sets[j];
            EXPECT_EQ(set, methods::choose(pooling({record.queries[j]}, keys), frame, set)) << where << ", query " << j;
            own.insert(own.end(), set.begin(), set.end());
          }
          std::sort(own.begin(), own.end());
          own.erase(std::unique(own.begin(), own.end()), own.end());
          ++compared;
        } else if (selector.per == plan::SetPer::kv_head) {
          EXPECT_EQ(own, methods::choose(pooling(record.queries, keys), frame, own)) << where;
          ++compared;
        } else {
          heads.push_back(pooling(record.queries, keys));
          if (head + 1 == shape.kv_heads) {
            const bool largest = selector.terms.at(0).heads == plan::HeadPooling::max;
            const methods::Scores pooled = largest ? methods::maximum(heads) : methods::mean(heads);
            EXPECT_EQ(own, methods::choose(pooled, frame, own)) << where;
            ++compared;
          }
        }
        if (run.plan.role(layer, head).attends_set) {
          EXPECT_EQ(record.reads_all ? everything(step.position + 1) : record.tokens, own) << where;
        } else {
          EXPECT_TRUE(record.reads_all) << where;
        }
        if (testing::Test::HasFailure()) return compared;  // one is enough to read
      }
    }
  }
  return compared;
}

int expect_inherited(const Recording& run, const HeadMap& map) {
  int compared = 0;
  for (const StepRecord& step : run.steps) {
    for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        if (record.role != plan::RoleKind::reuse) continue;
        const int mapped = map ? map(layer, head) : head;
        const HeadStep* source = nullptr;
        for (int from = layer - 1; from >= 0 && source == nullptr; --from) {
          if (run.at(step, from, mapped).role != plan::RoleKind::select) continue;
          source = &run.at(step, from, selector_of(run, from, mapped).per == plan::SetPer::layer ? 0 : mapped);
        }
        const std::string where = place(step, layer, head);
        EXPECT_NE(source, nullptr) << where;
        if (source == nullptr) return compared;
        EXPECT_EQ(record.reads_all, source->publishes_all) << where;
        EXPECT_EQ(record.query_sets, source->query_sets) << where;
        if (source->query_sets.empty() && !source->publishes_all) {
          EXPECT_EQ(record.tokens, source->published) << where;
        }
        ++compared;
        if (testing::Test::HasFailure()) return compared;
      }
    }
  }
  return compared;
}

void expect_roles(const Recording& run, const std::vector<int>& dense, const std::vector<int>& select) {
  const auto has = [](const std::vector<int>& layers, int layer) {
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
  };
  std::string letters;
  for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
    letters += has(dense, layer) ? 'D' : has(select, layer) ? 'S' : 'R';
  }
  expect_roles(run, std::vector<std::string>(static_cast<std::size_t>(run.plan.shape.kv_heads), letters));
}

void expect_roles(const Recording& run, const std::vector<std::string>& heads) {
  ASSERT_EQ(heads.size(), static_cast<std::size_t>(run.plan.shape.kv_heads));
  for (const StepRecord& step : run.steps) {
    for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        const char letter = heads[static_cast<std::size_t>(head)].at(static_cast<std::size_t>(layer));
        const plan::RoleKind expected = letter == 'D'   ? plan::RoleKind::dense
                                        : letter == 'S' ? plan::RoleKind::select
                                                        : plan::RoleKind::reuse;
        const HeadStep& record = run.at(step, layer, head);
        ASSERT_EQ(record.role, expected) << place(step, layer, head);
        if (expected == plan::RoleKind::dense) {
          EXPECT_TRUE(record.reads_all) << place(step, layer, head);
        }
      }
    }
  }
}

}  // namespace glimpse::engine

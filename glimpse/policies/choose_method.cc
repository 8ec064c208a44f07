#include "glimpse/policies/choose_method.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/policies/policy.h"

namespace glimpse::policies {
namespace {

constexpr double kMostDivergence = 100;
constexpr std::string_view kDense = "full";

/// What is known of one (method, budget, options), over its kinds of task.
struct Kinds {
  std::vector<const plan::Kept*> rows;

  template <class Value>
  double mean(const Value& value) const {
    double sum = 0;
    for (const plan::Kept* row : rows) sum += value(*row);
    return sum / static_cast<double>(rows.size());
  }
  std::optional<double> answers() const {
    std::optional<double> least;
    for (const plan::Kept* row : rows) {
      if (!plan::has_answers(row->task) || row->dense == 0) continue;
      least = std::min(least.value_or(1), row->answers / row->dense);
    }
    return least;
  }
  std::optional<double> agreement() const {
    const auto unknown = [](const plan::Kept* row) { return !row->agreement; };
    if (std::any_of(rows.begin(), rows.end(), unknown)) return std::nullopt;
    return mean([](const plan::Kept& row) { return *row.agreement; });
  }
  double divergence() const {
    return mean([](const plan::Kept& row) { return row.divergence; });
  }
  /// Where questions are answered: without prose.
  double answer_divergence() const {
    double sum = 0;
    int kinds = 0;
    for (const plan::Kept* row : rows) {
      if (row->task == plan::kProseTask) continue;
      sum += row->divergence;
      ++kinds;
    }
    return kinds == 0 ? 0 : sum / kinds;
  }
  struct Count {
    int lost = 0, asked = 0;
  };
  /// Answers fewer than dense attention's, of how many questions; none where that is not known.
  std::optional<Count> count() const {
    Count count;
    for (const plan::Kept* row : rows) {
      if (!plan::has_answers(row->task)) continue;
      if (!row->asked) return std::nullopt;
      count.asked += *row->asked;
      count.lost += std::max(0, static_cast<int>(std::lround((row->dense - row->answers) * *row->asked)));
    }
    return count;
  }
  std::string unfit() const {
    const std::string kinds = plan::not_for(rows);
    return kinds.empty() ? "" : "; not for " + kinds;
  }
  /// Whether answers are lost, in words; empty: they are kept.
  std::string lost() const {
    const std::optional<Count> counted = count();
    if (std::any_of(rows.begin(), rows.end(), [](const plan::Kept* row) { return row->left_out; })) {
      return fmt::format("left out after {} questions, of which it lost {}{}", counted ? counted->asked : 0,
                         counted ? counted->lost : 0, unfit());
    }
    if (counted && counted->lost > allowed_losses(counted->asked)) {
      return fmt::format("lost {} of {} answers, and {} may be lost{}", counted->lost, counted->asked,
                         allowed_losses(counted->asked), unfit());
    }
    for (const plan::Kept* row : rows) {
      if (!plan::has_answers(row->task)) continue;
      if (!counted && row->answers < row->dense) {
        return fmt::format("answers {:.0f} % of {}, dense attention {:.0f} %", 100 * row->answers, row->task,
                           100 * row->dense);
      }
      if (row->dense == 0 && row->agreement.value_or(0) < kAgreeing) {
        return fmt::format("dense attention answers no {}, and {:.0f} % of its text is the same, under {:.0f} %",
                           row->task, 100 * row->agreement.value_or(0), 100 * kAgreeing);
      }
    }
    return "";
  }
};

Kinds kinds_of(const plan::Profile& profile, const plan::MethodTime& timed) {
  Kinds kinds;
  for (const plan::Kept& row : profile.kept) {
    if (row.method == timed.method && row.budget == timed.budget && row.options == timed.options) {
      kinds.rows.push_back(&row);
    }
  }
  return kinds;
}

bool is_method(std::string_view name) {
  const auto policies = registry();
  return std::any_of(policies.begin(), policies.end(), [&](const Policy& policy) { return policy.name == name; });
}

/// Why a quality that was measured at `measured` tokens says nothing here; empty: it does. A share of a shorter context
/// is fewer tokens, and a number of tokens is a smaller share of a longer one.
std::string out_of_range(const std::string& budget, std::int64_t measured, std::int64_t tokens) {
  const bool share = plan::parse_budget(budget).rule == plan::BudgetRule::ratio;
  const bool known = share ? 2 * tokens >= measured : 4 * tokens <= 5 * measured;
  if (known) return "";
  return fmt::format("measured in contexts of {} tokens, so {} counts {} {}", measured, budget,
                     share ? "down to" : "up to", share ? measured / 2 : measured * 5 / 4);
}

std::string refusal(const Kinds& kinds, const plan::MethodTime& timed, std::int64_t measured, const MethodWish& wish) {
  if (std::string why = out_of_range(timed.budget, measured, wish.tokens); !why.empty()) return why;
  if (!wish.quality.divergence) return kinds.lost();
  if (kinds.divergence() <= *wish.quality.divergence) return "";
  return fmt::format("KL {:.4f} is above {:g}", kinds.divergence(), *wish.quality.divergence);
}

/// Why a method is taken before one that is a little faster.
std::string why_behind(const MethodCandidate& faster, const MethodCandidate& taken) {
  if (faster.lost > taken.lost) {
    return fmt::format("lost {} answers, and the other is about as fast", faster.lost);
  }
  return fmt::format("KL {:.4f} in its answers, and the other, about as fast, has {:.4f}", faster.answer_divergence,
                     taken.answer_divergence);
}

const plan::SpeedProfile& speed_of(const plan::Profile& profile, const MethodWish& wish) {
  const plan::SpeedProfile* own = wish.machine ? plan::speed_on(profile, *wish.machine) : nullptr;
  return own == nullptr ? *profile.speed : *own;
}

MethodCandidate candidate_of(const plan::Profile& profile, const plan::MethodTime& timed, const MethodWish& wish) {
  const plan::SpeedProfile& speed = speed_of(profile, wish);
  MethodCandidate candidate;
  candidate.method = timed.method;
  candidate.budget = timed.budget;
  candidate.options = timed.options;
  // A budget that covers the context is dense attention, whatever a line through longer contexts says.
  const plan::Budget budget = plan::parse_budget(timed.budget);
  const bool covers = plan::budget_tokens(budget, wish.tokens) >= wish.tokens;
  candidate.ms = covers ? speed.dense.at(wish.tokens) : timed.time.at(wish.tokens);
  const Kinds kinds = kinds_of(profile, timed);
  if (!is_method(timed.method)) {
    candidate.why_not = "no method of this program";
    return candidate;
  }
  if (kinds.rows.empty()) {
    candidate.why_not = "its answers were not measured";
    return candidate;
  }
  candidate.answers = kinds.answers();
  candidate.agreement = kinds.agreement();
  candidate.lost = kinds.count().value_or(Kinds::Count{}).lost;
  candidate.divergence = kinds.divergence();
  candidate.answer_divergence = kinds.answer_divergence();
  if (!wish.drafts) {
    candidate.why_not = refusal(kinds, timed, speed.tokens, wish);
    return candidate;
  }
  if (!candidate.agreement) {
    candidate.why_not = "its agreement with dense attention was not measured";
    return candidate;
  }
  const DraftTimes times{candidate.ms, speed.dense.at(wish.tokens), speed.verify.at(wish.tokens)};
  for (int drafts = 1; drafts <= plan::kVerifiedDrafts; ++drafts) {
    const double ms = drafted_token_ms(times, *candidate.agreement, drafts);
    if (candidate.drafts > 0 && ms >= candidate.ms) continue;
    candidate.ms = ms;
    candidate.drafts = drafts;
  }
  return candidate;
}

}  // namespace

Quality parse_quality(std::string_view text) {
  constexpr std::string_view kKey = "kl=";
  if (text == "answers") return {};
  Quality quality;
  if (text.starts_with(kKey)) {
    const std::string_view number = text.substr(kKey.size());
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    // NaN fails the comparison too.
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (whole && value >= 0 && value <= kMostDivergence) quality.divergence = value;
  }
  if (quality.divergence) return quality;
  throw UserError(
      fmt::format("--attn-quality '{}': give answers, or kl= and a number of nats from 0 to {:g}, as in "
                  "kl=0.05",
                  excerpt(text), kMostDivergence));
}

std::vector<MethodCandidate> choose_method(const plan::Profile& profile, const MethodWish& wish) {
  if (!profile.speed) {
    throw UserError(
        "the profile has no measured times, by which --attn auto chooses; 'glimpse calibrate -m MODEL' measures them");
  }
  const plan::SpeedProfile& speed = speed_of(profile, wish);
  MethodCandidate dense;
  dense.method = kDense;
  dense.answers = 1;
  dense.agreement = 1;
  dense.ms = speed.dense.at(wish.tokens);
  std::vector<MethodCandidate> candidates{std::move(dense)};
  for (const plan::MethodTime& timed : speed.methods) {
    candidates.push_back(candidate_of(profile, timed, wish));
    MethodCandidate& made = candidates.back();
    if (made.why_not.empty() && wish.refusal) made.why_not = wish.refusal(made);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const MethodCandidate& a, const MethodCandidate& b) { return a.ms < b.ms; });
  // Dense attention can always be taken.
  const auto may = [](const MethodCandidate& candidate) { return candidate.why_not.empty(); };
  auto taken = std::find_if(candidates.begin(), candidates.end(), may);
  const double close = taken->ms * kCloseTimes;
  const auto rank = [](const MethodCandidate& candidate) {
    return std::pair(candidate.lost, candidate.answer_divergence);
  };
  for (auto other = taken; !wish.drafts && !wish.quality.divergence && other != candidates.end(); ++other) {
    if (may(*other) && other->ms <= close && rank(*other) < rank(*taken)) taken = other;
  }
  std::rotate(candidates.begin(), taken, taken + 1);
  for (auto other = candidates.begin() + 1; other != candidates.end(); ++other) {
    if (!may(*other)) continue;
    other->why_not = other->ms < candidates.front().ms ? why_behind(*other, candidates.front()) : "slower";
  }
  return candidates;
}

std::string arm_text(const MethodCandidate& candidate) {
  return candidate.method + (candidate.budget.empty() ? "" : ":") + candidate.budget +
         (candidate.options.empty() ? "" : ",") + candidate.options;
}

double drafted_token_ms(const DraftTimes& times, double acceptance, int drafts) {
  double tokens = 1, all = 1;
  for (int i = 0; i < drafts; ++i) tokens += all *= acceptance;
  const double verify =
      times.dense_ms + (times.verify_ms - times.dense_ms) * drafts / static_cast<double>(plan::kVerifiedDrafts);
  return (drafts * times.draft_ms + verify) / tokens;
}

}  // namespace glimpse::policies

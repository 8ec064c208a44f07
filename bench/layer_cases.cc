#include "bench/layer_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/step_check.h"
#include "glimpse/attention/choose.h"
#include "glimpse/base/error.h"

namespace glimpse::bench {
namespace {

using plan::RoleKind;

constexpr int kWarmUp = 3;  ///< steps: the first builds indices and evicts, the last is checked

const plan::Selector& selector_of(const plan::Plan& plan, const plan::Role& role) {
  return plan.selectors[static_cast<std::size_t>(role.selector)];
}

bool searches(const plan::Plan& plan, const plan::Role& role) {
  return role.kind == RoleKind::select && plan::is_index(selector_of(plan, role).terms.front().source);
}

/// Query heads of a KV head that score all keys before they attend.
int scored_before(const plan::Plan& plan, int layer, int head) {
  const plan::Role& role = plan.role(layer, head);
  if (role.kind != RoleKind::select || !role.attends_set || searches(plan, role)) return 0;
  return attention::scoring_queries(selector_of(plan, role).terms.front(), head, plan.shape.group());
}

std::string word(const plan::Plan& plan, const plan::Role& role) {
  switch (role.kind) {
    case RoleKind::dense: {
      if (role.retention < 0) return "dense";
      return plan.retentions[static_cast<std::size_t>(role.retention)].rule == plan::RetentionRule::stamps ? "stamped"
                                                                                                           : "kept";
    }
    case RoleKind::select:
      return std::string(searches(plan, role) ? "search" : "select") + (role.attends_set ? "" : " and read all");
    case RoleKind::reuse:
      return "reuse";
    case RoleKind::stream:
      return "window";
  }
  return "";
}

std::string kind_of(const plan::Plan& plan, int layer, std::int64_t tokens) {
  if (plan::is_dense_at(plan, tokens)) return "dense";
  std::map<std::string, int> words;
  int scored = 0;
  bool some_score = false;
  for (int head = 0; head < plan.shape.kv_heads; ++head) {
    const plan::Role& role = plan.role(layer, head);
    ++words[word(plan, role)];
    scored += scored_before(plan, layer, head);
    some_score |= role.kind == RoleKind::select && selector_of(plan, role).terms.back().source == plan::Source::heat;
  }
  std::string text;
  for (const auto& [name, count] : words) {
    if (words.size() > 1) text += fmt::format("{}{} ", text.empty() ? "" : "+ ", count);
    text += name + (words.size() > 1 ? " " : "");
  }
  while (text.ends_with(' ')) text.pop_back();
  return some_score ? fmt::format("{}, {} query heads score", text, scored) : text;
}

/// One arm while it is measured.
struct Subject {
  const Arm* arm = nullptr;
  int number = -1;
  std::vector<int> kind;  ///< [layer] index into rows
  std::vector<LayerRow> rows;
  struct Samples {
    std::vector<double> select, attend, select_need, attend_need, ratio, over, fraction, over_dense;
  };
  std::vector<Samples> samples;  ///< [row]
};

Subject open(const Arm& arm, StepBed& bed) {
  Subject subject{&arm, bed.add(arm.plan), {}, {}, {}};
  for (int layer = 0; layer < arm.plan.shape.layers; ++layer) {
    const std::string kind = kind_of(arm.plan, layer, bed.tokens() + 1);
    auto row =
        std::find_if(subject.rows.begin(), subject.rows.end(), [&](const LayerRow& r) { return r.kind == kind; });
    if (row == subject.rows.end()) {
      LayerRow made;
      made.method = arm.method;
      made.budget = arm.budget;
      made.kind = kind;
      made.heads = arm.plan.shape.kv_heads;
      for (int head = 0; head < made.heads; ++head) made.index |= searches(arm.plan, arm.plan.role(layer, head));
      row = subject.rows.insert(subject.rows.end(), made);
    }
    ++row->layers;
    subject.kind.push_back(static_cast<int>(row - subject.rows.begin()));
  }
  subject.samples.resize(subject.rows.size());
  return subject;
}

/// Bytes of every kind of layer, from what the heads said they read; held against the runner's own counters.
void count_bytes(Subject& subject, const StepBed& bed, const std::vector<std::vector<HeadRead>>& reads) {
  const plan::Plan& plan = subject.arm->plan;
  const attention::ReadCounters& counters = bed.counters();
  const bool dense = plan::is_dense_at(plan, bed.tokens());
  const auto row_bytes = static_cast<double>(bed.format().read_bytes());
  const auto context = static_cast<double>(bed.tokens());
  std::int64_t k_rows = 0, v_rows = 0;
  int searching = 0, low_rank_layers = 0;
  std::vector<LayerBytes> bytes(reads.size());
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    LayerBytes& of = bytes[static_cast<std::size_t>(layer)];
    low_rank_layers += bed.state(subject.number).key_ranks[static_cast<std::size_t>(layer)] > 0;
    for (const HeadRead& read : reads[static_cast<std::size_t>(layer)]) {
      const plan::Role& role = plan.role(layer, read.kv_head);
      const int scored = dense ? 0 : scored_before(plan, layer, read.kv_head);
      if (scored > 0) {
        k_rows += bed.tokens();
        of.select += context * (row_bytes + static_cast<double>(sizeof(float)) * scored);
      }
      searching += !dense && searches(plan, role);
      const bool mean = !dense && !read.all && role.kind == RoleKind::stream && role.retention >= 0 &&
                        plan.retentions[static_cast<std::size_t>(role.retention)].compensates;
      const std::int64_t rows = read.rows(bed.tokens()) + (mean ? 1 : 0);
      k_rows += rows;
      v_rows += rows;
      of.attend += 2 * row_bytes * static_cast<double>(rows);
      const bool listed = !read.all && (role.kind == RoleKind::select || role.kind == RoleKind::reuse);
      if (listed) of.attend += static_cast<double>(sizeof(std::int32_t)) * static_cast<double>(rows);
      if (!dense && role.kind == RoleKind::select && !role.attends_set && !searches(plan, role)) {
        of.attend += context * static_cast<double>(sizeof(float)) * plan.shape.group();  // it keeps its scores
      }
    }
  }
  check(k_rows == counters.k_rows && v_rows == counters.v_rows,
        fmt::format("{}: its heads read {} rows of K and {} of V, its counters say {} and {}", subject.arm->label(),
                    k_rows, v_rows, counters.k_rows, counters.v_rows));
  const double index = searching > 0 ? static_cast<double>(counters.index_bytes) / searching : 0;
  const double factors =
      low_rank_layers > 0
          ? (static_cast<double>(counters.low_rank_bytes) - row_bytes * static_cast<double>(counters.low_rank_rows)) /
                low_rank_layers
          : 0;
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    LayerBytes& of = bytes[static_cast<std::size_t>(layer)];
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      if (!dense && searches(plan, plan.role(layer, head))) of.select += index;
    }
    if (bed.state(subject.number).key_ranks[static_cast<std::size_t>(layer)] > 0) of.attend += factors;
    LayerRow& row = subject.rows[static_cast<std::size_t>(subject.kind[static_cast<std::size_t>(layer)])];
    row.bytes.select += of.select / row.layers;
    row.bytes.attend += of.attend / row.layers;
  }
}

/// The last layer of each kind against the reference: later layers inherit from all kinds before them.
void check_step(Subject& subject, const StepBed& bed, const std::vector<std::vector<HeadRead>>& reads) {
  for (std::size_t kind = 0; kind < subject.rows.size(); ++kind) {
    const auto last = std::find(subject.kind.rbegin(), subject.kind.rend(), static_cast<int>(kind));
    const auto layer = static_cast<int>(subject.kind.rend() - last) - 1;
    const auto& heads = reads[static_cast<std::size_t>(layer)];
    check_outputs(bed, subject.number, subject.arm->plan, layer, heads);
    const evaluate::SetQuality found = layer_quality(bed, layer, heads);
    if (found.count == 0) continue;
    LayerRow& row = subject.rows[kind];
    row.mass = found.mass / static_cast<double>(found.count);
    row.best_mass = found.best_mass / static_cast<double>(found.count);
    check(row.mass <= row.best_mass * (1 + 1e-9), "no set captures more than the best of its size");
    const plan::Role& role = subject.arm->plan.role(layer, 0);
    if (role.kind != RoleKind::select || !role.attends_set) continue;
    // Outlier chunks may fill a set, and no query chose them.
    if (selector_of(subject.arm->plan, role).terms.front().index.outlier_chunks > 0) continue;
    const double share = found.tokens / static_cast<double>(found.count) / static_cast<double>(bed.tokens());
    check(row.mass > share, fmt::format("{}, {}: its sets capture {:.3f} of the mass, sets by lot {:.3f}",
                                        subject.arm->label(), row.kind, row.mass, share));
  }
}

/// Every layer is a sample: short enough to go through between two interruptions.
void take_sample(Subject& subject, const std::vector<LayerTime>& times, double bandwidth, double dense_s) {
  for (std::size_t layer = 0; layer < times.size(); ++layer) {
    const auto kind = static_cast<std::size_t>(subject.kind[layer]);
    const LayerRow& row = subject.rows[kind];
    Subject::Samples& to = subject.samples[kind];
    const double select = times[layer].select_s, attend = times[layer].attend_s;
    const double select_need = row.bytes.select / bandwidth, attend_need = row.bytes.attend / bandwidth;
    to.select.push_back(select);
    to.attend.push_back(attend);
    to.select_need.push_back(select_need);
    to.attend_need.push_back(attend_need);
    to.ratio.push_back(select_need > 0 ? select / select_need : 0);
    to.over.push_back((select - select_need) / row.heads);
    to.fraction.push_back((select_need + attend_need) / (select + attend));
    to.over_dense.push_back(attend - dense_s);
  }
}

std::vector<LayerRow> close(Subject& subject) {
  for (std::size_t i = 0; i < subject.rows.size(); ++i) {
    LayerRow& row = subject.rows[i];
    Subject::Samples& from = subject.samples[i];
    row.select_s = spread_of(from.select);
    row.attend_s = spread_of(from.attend);
    row.select_need_s = spread_of(from.select_need);
    row.attend_need_s = spread_of(from.attend_need);
    row.select_ratio = spread_of(from.ratio);
    row.select_over_s = spread_of(from.over);
    row.fraction = spread_of(from.fraction);
    row.over_dense_s = spread_of(from.over_dense);
    const double select = row.select_s.least, select_need = row.select_need_s.least;
    row.select_ratio.least = select_need > 0 ? select / select_need : 0;
    row.select_over_s.least = (select - select_need) / row.heads;
    row.fraction.least = (select_need + row.attend_need_s.least) / (select + row.attend_s.least);
  }
  return subject.rows;
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  check(!samples.empty(), "a spread is of samples");
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front()};
}

std::vector<LayerRow> run_layer_cases(const LayerCaseOptions& options, const std::vector<Arm>& arms,
                                      const std::function<void(const std::string&)>& note) {
  check(!arms.empty() && arms[0].method == "full" && options.repeats > 0, "full comes first, and is repeated");
  BedOptions how = options.bed;
  how.steps = kWarmUp + options.repeats;
  how.plans = static_cast<int>(arms.size());
  StepBed bed(how);
  std::vector<Subject> subjects;
  for (const Arm& arm : arms) {
    if (arm.refused.empty()) subjects.push_back(open(arm, bed));
  }
  for (int round = 0; round < kWarmUp; ++round) {
    bed.next_token();
    std::vector<std::vector<HeadRead>> reads;
    for (Subject& subject : subjects) {
      if (round == 0) note("first step of " + subject.arm->label());
      const bool last = round + 1 == kWarmUp;
      bed.step(subject.number, last ? &reads : nullptr);
      if (!last) continue;
      count_bytes(subject, bed, reads);
      check_step(subject, bed, reads);
    }
  }
  note("checked; measuring");
  for (int round = 0; round < options.repeats; ++round) {
    bed.next_token();
    double dense_s = 0;
    for (Subject& subject : subjects) {
      const double bandwidth = bed.bandwidth();
      const std::vector<LayerTime> times = bed.step(subject.number);
      if (&subject == &subjects.front()) {
        std::vector<double> dense;
        for (const LayerTime& time : times) dense.push_back(time.attend_s);
        dense_s = spread_of(dense).median;
      }
      take_sample(subject, times, bandwidth, dense_s);
    }
  }
  std::vector<LayerRow> rows;
  for (Subject& subject : subjects) {
    for (LayerRow& row : close(subject)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace glimpse::bench

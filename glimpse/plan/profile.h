// What calibration found out about one model, as plain data: a policy may read it (--attn-profile FILE). Value types;
// any thread may read. glimpse/plan/profile_file.h has the files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"
#include "glimpse/plan/speed_profile.h"

namespace glimpse::plan {

/// Kascade: the layers that select, and whose set each head of every other layer reads.
struct KascadeProfile {
  std::vector<int> anchors;  ///< ascending, the first is layer 0
  std::vector<int>
      head_map;  ///< [layer, kv_head]: KV head of the nearest earlier anchor; an anchor's row is 0, 1, 2, ...
  /// What the best 1, 2, ... anchors keep: similarity times importance, of what an anchor in every layer keeps
  /// (section 3.3). 0 to 1; empty: not measured.
  std::vector<double> objective = {};
  /// [a, b]: of the mass that the sets of layer b hold, the share that those of layer a <= b hold, 0 to 1; 0 where
  /// a > b (section 3.2). Empty: not measured.
  std::vector<double> similarity = {};
  friend bool operator==(const KascadeProfile&, const KascadeProfile&) = default;
};

/// TidalDecode: the layer that selects again.
struct TidalProfile {
  int reselect = -1;
  friend bool operator==(const TidalProfile&, const TidalProfile&) = default;
};

/// LessIsMore: the layer that selects again.
struct LessIsMoreProfile {
  int reselect = -1;
  friend bool operator==(const LessIsMoreProfile&, const LessIsMoreProfile&) = default;
};

/// OmniKV: the layers that select.
struct OmniKvProfile {
  std::vector<int> filters;  ///< ascending, at least one
  friend bool operator==(const OmniKvProfile&, const OmniKvProfile&) = default;
};

/// Retrieval score of each query head: the share of needle tokens copied while its arg-max lay on them, 0 to 1.
struct RetrievalProfile {
  std::vector<double> scores;  ///< [layer, query head]
  friend bool operator==(const RetrievalProfile&, const RetrievalProfile&) = default;
};

/// Probability of each KV head to be a retrieval head, 0 to 1, by training (LycheeDecode's E[z], DuoAttention's gate).
struct RolesProfile {
  std::vector<double> probability;  ///< [layer, kv_head]
  friend bool operator==(const RolesProfile&, const RolesProfile&) = default;
};

/// The least tokens whose exact choice captures a share of each KV head's softmax mass in dense decode steps: what any
/// method that selects may take as its budgets.
struct BudgetProfile {
  std::int64_t context = 0;          ///< tokens of the prompts that it was measured in
  double coverage = 0;               ///< that share of the mass, in (0, 1)
  std::optional<double> steps;       ///< the share of steps that capture it, in (0, 1]; none: they do on average
  bool together = false;             ///< `coverage` is the mean of the heads behind layer 0; false: each has it
  std::optional<double> divergence;  ///< the KL to dense that `coverage` was found for, nats, over 0; none: given
  std::vector<int> tokens;           ///< [layer, kv_head] 1 or more; `context` or more: everything
  friend bool operator==(const BudgetProfile&, const BudgetProfile&) = default;
};

/// Kinds of task of which only the logits are compared: prose goes on, and facts about people are asked for. Profiles
/// of earlier versions have several numbers at once in their place.
inline constexpr std::string_view kProseTask = "prose", kFactsTask = "qa", kSeveralTask = "multiquery";
/// True for the others, whose answers are right or wrong.
constexpr bool has_answers(std::string_view task) {
  return task != kProseTask && task != kSeveralTask && task != kFactsTask;
}

/// What a method with this profile kept of dense attention, on one kind of task at one budget. Method, options, budget
/// and task name a row, and no two rows have the same.
struct Kept {
  std::string method;     ///< as --attn has it; printable ASCII, as the task
  std::string budget;     ///< as --attn-budget has it: "512", "10%"
  std::string task;       ///< "needle", "chain"
  double answers = 0;     ///< share of the tasks that were answered, 0 to 1
  double dense = 0;       ///< the same of dense attention
  double divergence = 0;  ///< KL divergence of the logits from dense attention's, nats, 0 or more
  double coverage = 0;    ///< softmax mass that the sets captured, 0 to 1
  /// Share of the tokens of dense attention's answer that were the first choice too, 0 to 1; none: not measured.
  std::optional<double> agreement = std::nullopt;
  std::string options = {};  ///< "prefill=dense": as --attn-opt has them, with commas between; may be empty
  std::optional<int> asked = std::nullopt;  ///< questions that the shares of answers are of, 1 or more; none: not known
  bool left_out =
      false;  ///< others were asked more questions: no answer tells whether this one keeps them; beside `asked`
  friend bool operator==(const Kept&, const Kept&) = default;
};

/// What a row is called: "kascade,prefill=dense".
std::string row_name(std::string_view method, std::string_view options);
/// "28", or "6, left out"; empty: not known.
std::string asked_text(const Kept& row);

/// Of what dense attention answers of a kind of task, a method keeps at least so much.
inline constexpr double kKeptAnswers = 0.85;
/// What a method is not for, among the kinds of task in its rows, which are of one method, budget and options: "copying
/// passkeys, following variables"; empty: it keeps kKeptAnswers of every kind.
std::string not_for(std::span<const Kept* const> rows);

struct Profile {
  ModelShape model;  ///< the model it was made for; `context` is no part of that and stays 0
  /// Of the model's file (model::fingerprint); none: any file of that shape.
  std::optional<std::uint64_t> fingerprint;
  std::optional<KascadeProfile> kascade;
  std::optional<TidalProfile> tidal;
  std::optional<RetrievalProfile> retrieval;
  std::optional<RolesProfile> roles;
  std::optional<LessIsMoreProfile> lessismore;
  std::optional<OmniKvProfile> omnikv;
  std::optional<BudgetProfile> budget;
  std::vector<Kept> kept;             ///< empty: not measured
  std::optional<SpeedProfile> speed;  ///< of dense attention and of the rows of `kept`
  /// The same of other machines than that of `speed`, each another one, in prompts of the same length; only beside it.
  std::vector<SpeedProfile> elsewhere;

  /// The part by its name in JSON: "kascade", "tidal", "retrieval", "roles", "lessismore", "omnikv", "budget",
  /// "kept", "speed".
  bool has(std::string_view part) const;
  /// Anchor's KV head that a head of a layer reads.
  int mapped_head(int layer, int kv_head) const {
    return kascade->head_map[static_cast<std::size_t>(layer) * static_cast<std::size_t>(model.kv_heads) +
                             static_cast<std::size_t>(kv_head)];
  }
  friend bool operator==(const Profile&, const Profile&) = default;
};

/// The times that were measured on this machine; null: none.
const SpeedProfile* speed_on(const Profile& profile, const SpeedMachine& machine);
/// Takes over the times that `other`, a profile of the same model, has of other machines.
void keep_elsewhere(Profile& profile, const Profile& other);

/// Throws UserError with the first thing that is wrong: a head or layer out of range, a size that is not the model's,
/// NaN, a row given twice, no part at all.
void validate(const Profile& profile);
/// The same, and that the profile was made for this model. Without `fingerprint`, or where the profile has none, the
/// shape alone says so.
void validate_for(const Profile& profile, const ModelShape& shape,
                  const std::optional<std::uint64_t>& fingerprint = std::nullopt);

/// A profile of this model without any part.
Profile empty_profile(const ModelShape& shape);

/// Takes over the parts that `found` has, made for the same model; of `kept` and, where they were measured alike, of
/// `speed` its rows instead of those of its methods. Times of another machine stay in `elsewhere`.
void merge(Profile& into, const Profile& found);

/// The profile as JSON and back; equal after a round trip. parse_profile throws UserError and validates.
std::string to_json(const Profile& profile);
Profile parse_profile(std::string_view text);
/// A model's fingerprint as text: 16 digits of base 16, in small letters.
std::string fingerprint_text(std::uint64_t fingerprint);
/// True for a text with the key that every profile starts with; the rest may still be refused.
bool is_profile_text(std::string_view text);

/// A line or two for each part, and the rows of `kept` as a table. For `glimpse inspect`.
std::string explain(const Profile& profile);

}  // namespace glimpse::plan

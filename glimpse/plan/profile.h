// What calibration found out about one model, as plain data: a policy may read it (--attn-profile FILE). Value types;
// any thread may read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::plan {

/// Kascade: the layers that select, and whose set each head of every other layer reads.
struct KascadeProfile {
  std::vector<int> anchors;  ///< ascending, the first is layer 0
  std::vector<int>
      head_map;  ///< [layer, kv_head]: KV head of the nearest earlier anchor; an anchor's row is 0, 1, 2, ...
  friend bool operator==(const KascadeProfile&, const KascadeProfile&) = default;
};

/// TidalDecode: the layer that selects again.
struct TidalProfile {
  int reselect = -1;
  friend bool operator==(const TidalProfile&, const TidalProfile&) = default;
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

struct Profile {
  ModelShape model;  ///< the model it was made for; `context` is no part of that and stays 0
  std::optional<KascadeProfile> kascade;
  std::optional<TidalProfile> tidal;
  std::optional<RetrievalProfile> retrieval;
  std::optional<RolesProfile> roles;

  /// The part by its name in JSON: "kascade", "tidal", "retrieval", "roles".
  bool has(std::string_view part) const;
  /// Anchor's KV head that a head of a layer reads.
  int mapped_head(int layer, int kv_head) const {
    return kascade->head_map[static_cast<std::size_t>(layer) * static_cast<std::size_t>(model.kv_heads) +
                             static_cast<std::size_t>(kv_head)];
  }
  friend bool operator==(const Profile&, const Profile&) = default;
};

/// Throws UserError with the first thing that is wrong: a head or layer out of range, a size that is not the model's,
/// NaN, no part at all.
void validate(const Profile& profile);
/// The same, and that the profile was made for this model.
void validate_for(const Profile& profile, const ModelShape& shape);

/// The profile as JSON and back; equal after a round trip. parse_profile throws UserError and validates.
std::string to_json(const Profile& profile);
Profile parse_profile(std::string_view text);
/// True for a text with the key that every profile starts with; the rest may still be refused.
bool is_profile_text(std::string_view text);

/// A line or two for each part. For `glimpse inspect`.
std::string explain(const Profile& profile);

}  // namespace glimpse::plan

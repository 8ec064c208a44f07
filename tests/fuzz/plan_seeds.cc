// Writes the seed corpus of plan_fuzzer into a folder: plan_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "glimpse/policies/policy.h"

namespace {

using glimpse::plan::ModelShape;
using glimpse::plan::Profile;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A profile with every part, for a small shape.
Profile profile_of(const ModelShape& shape) {
  Profile profile;
  profile.model = shape;
  profile.model.context = 0;
  const auto cells = static_cast<std::size_t>(shape.layers * shape.kv_heads);
  profile.kascade = glimpse::plan::KascadeProfile{{0}, std::vector<int>(cells)};
  for (std::size_t i = 0; i < cells; ++i) profile.kascade->head_map[i] = static_cast<int>(i) % shape.kv_heads;
  profile.tidal = glimpse::plan::TidalProfile{shape.layers - 1};
  profile.retrieval =
      glimpse::plan::RetrievalProfile{std::vector<double>(static_cast<std::size_t>(shape.layers * shape.heads), 0.125)};
  profile.roles = glimpse::plan::RolesProfile{std::vector<double>(cells, 0.75)};
  profile.fingerprint = 0x0123456789abcdef;
  profile.lessismore = glimpse::plan::LessIsMoreProfile{shape.layers - 1};
  profile.omnikv = glimpse::plan::OmniKvProfile{{0, shape.layers - 1}};
  profile.kept = {{"tidal", "512", "needle", 0.5, 1, 0.25, 0.875, 0.5, "set=layer"}};
  profile.speed = glimpse::plan::SpeedProfile{"A processor", 2, "bf16", 4096, {5, 1}, {9, 2}, {}};
  profile.speed->methods = {{"tidal", "512", "set=layer", {6, 0.5}}};
  return profile;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: plan_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  const ModelShape shape{"llama", "seed", 6, 4, 2, 64, 4096};
  for (const glimpse::policies::Policy& policy : glimpse::policies::registry()) {
    const std::string name(policy.name);
    glimpse::policies::PolicyOptions options;
    for (const auto& row : policy.options) {
      if (row.needed) options.extra.emplace(std::string(row.key), "gates.gguf");
    }
    write(folder / (name + ".json"), to_json(glimpse::policies::make_plan(name, shape, options)));
  }
  glimpse::policies::PolicyOptions heat;
  heat.extra = {{"heat", "layer"}};
  write(folder / "heat-layer.json", to_json(glimpse::policies::make_plan("evosparse", shape, heat)));
  write(folder / "profile.json", to_json(profile_of(shape)));
  return 0;
}

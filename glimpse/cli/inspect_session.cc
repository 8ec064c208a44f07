#include "glimpse/cli/inspect_session.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "glimpse/base/dtype.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/session/content.h"
#include "glimpse/engine/session/file.h"

namespace glimpse::cli {
namespace {

using engine::SectionKind;
using Json = nlohmann::ordered_json;

struct Section {
  std::string name;
  std::int64_t count = 0;
  std::uint64_t bytes = 0;
};

/// All sections under their checks, the layers together.
std::vector<Section> checked_sections(const engine::SessionReader& reader) {
  std::vector<Section> sections;
  for (const engine::SessionEntry& entry : reader.sections()) {
    const auto kind = static_cast<SectionKind>(entry.kind);
    reader.section(kind, entry.index);
    const std::string name = kind == SectionKind::layer ? "layers" : engine::title(entry);
    if (sections.empty() || sections.back().name != name) sections.push_back({name});
    ++sections.back().count;
    sections.back().bytes += entry.bytes;
  }
  return sections;
}

struct Facts {
  engine::SessionAbout about;
  plan::Plan plan;
  std::vector<Section> sections;
  std::uint64_t bytes = 0;
  bool logits = false;
};

std::string json_of(const Facts& facts) {
  const engine::SessionAbout& about = facts.about;
  const std::string budget = budget_text(facts.plan);
  Json json{{"kind", "session"},
            {"version", engine::kSessionVersion},
            {"bytes", facts.bytes},
            {"model",
             {{"architecture", about.shape.architecture},
              {"name", about.shape.model_name},
              {"layers", about.shape.layers},
              {"heads", about.shape.heads},
              {"kv_heads", about.shape.kv_heads},
              {"head_dim", about.shape.head_dim},
              {"vocabulary", about.vocabulary},
              {"fingerprint", fmt::format("{:016x}", about.fingerprint)}}},
            {"kv_type", name(about.kv_type)},
            {"tokens", about.tokens},
            {"prompt_tokens", about.prompt_tokens},
            {"decode_steps", about.decode_steps},
            {"logits", facts.logits},
            {"plan", {{"policy", facts.plan.policy}, {"budget", budget.empty() ? Json(nullptr) : Json(budget)}}},
            {"sections", Json::array()}};
  for (const Section& section : facts.sections) {
    json["sections"].push_back({{"name", section.name}, {"count", section.count}, {"bytes", section.bytes}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string text_of(const std::string& path, const Facts& facts) {
  const engine::SessionAbout& about = facts.about;
  const plan::ModelShape& shape = about.shape;
  const auto line = [](std::string_view what, const std::string& value) {
    return fmt::format("{:<16}{}\n", what, printable(value));
  };
  std::string text = line("file", path);
  text += line("session", fmt::format("version {}, {}, all checks passed", engine::kSessionVersion,
                                      bytes_text(static_cast<double>(facts.bytes))));
  text += line("model", fmt::format("{} '{}', {} layers, {} query and {} KV heads of {}, {} tokens of vocabulary",
                                    shape.architecture, shape.model_name, shape.layers, shape.heads, shape.kv_heads,
                                    shape.head_dim, about.vocabulary));
  text += line("fingerprint", fmt::format("{:016x}", about.fingerprint));
  text += line("KV cache", std::string(name(about.kv_type)));
  text += line("tokens", fmt::format("{}, {} of them prompt, {} decode steps{}", about.tokens, about.prompt_tokens,
                                     about.decode_steps, facts.logits ? "; with the logits of the last" : ""));
  const std::string budget = budget_text(facts.plan);
  text += line("plan", facts.plan.policy + (budget.empty() ? "" : ", budget " + budget));
  for (const Section& section : facts.sections) {
    const std::string count = section.count == 1 ? "" : fmt::format("{} ", section.count);
    text += line(&section == &facts.sections.front() ? "sections" : "",
                 fmt::format("{:<12}{:>12}", count + section.name, bytes_text(static_cast<double>(section.bytes))));
  }
  return text;
}

}  // namespace

bool looks_like_session(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(engine::kSessionMagic.size(), '\0');
  return file.read(start.data(), static_cast<std::streamsize>(start.size())) && start == engine::kSessionMagic;
}

int inspect_session(const Arguments& arguments) {
  const engine::SessionReader reader{std::filesystem::path(arguments.subject)};
  Facts facts;
  facts.sections = checked_sections(reader);
  facts.about = engine::read_session_about(reader);
  facts.plan = engine::read_session_plan(reader);
  facts.bytes = std::filesystem::file_size(arguments.subject);
  facts.logits = !reader.section(SectionKind::logits).empty();
  print(arguments.json ? json_of(facts) : text_of(arguments.subject, facts));
  return kExitOk;
}

}  // namespace glimpse::cli

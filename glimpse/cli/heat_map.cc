#include "glimpse/cli/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace glimpse::cli {
namespace {

constexpr int kCell = 16, kLeft = 96, kTop = 76, kRight = 24, kBottom = 92, kLeastWidth = 420;
constexpr int kEvery = 4;  // layers between two numbers of an axis

constexpr std::string_view kStyle =
    "  text { font: 12px -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; fill: #1f2328 }\n"
    "  .title { font-size: 16px; font-weight: 600 }\n"
    "  .anchor { font-weight: 600; fill: #bc4c00 }\n"
    "  .row { fill: none; stroke: #bc4c00; stroke-width: 1.5 }\n";

/// From nearly white to dark blue.
std::string colour(double value) {
  constexpr std::array<double, 3> kNone{240, 246, 252}, kAll{8, 48, 107};
  const double share = std::clamp(value, 0.0, 1.0);
  const auto part = [&](std::size_t i) {
    return static_cast<int>(std::lround(kNone[i] + share * (kAll[i] - kNone[i])));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", part(0), part(1), part(2));
}

std::string text_at(int x, int y, std::string_view anchor, std::string_view words, std::string_view kind = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
                     kind.empty() ? "" : fmt::format(" class=\"{}\"", kind), words);
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (static_cast<unsigned char>(c) >= ' ')
      safe += c;
  }
  return safe;
}

std::string legend(int x, int y) {
  std::string text;
  constexpr int kSteps = 10, kStep = 12;
  for (int i = 0; i <= kSteps; ++i) {
    text += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"10\" fill=\"{}\"/>\n", x + i * kStep, y, kStep,
                        colour(static_cast<double>(i) / kSteps));
  }
  return text + text_at(x, y + 24, "start", "0") + text_at(x + (kSteps + 1) * kStep, y + 24, "end", "1");
}

}  // namespace

std::string heat_map(const HeatMap& map) {
  const int side = map.layers * kCell;
  const int width = std::max(kLeft + side + kRight, kLeastWidth), height = kTop + side + kBottom;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-label=\"Similarity of {2} layers\">\n<style>\n{3}</style>\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#ffffff\"/>\n",
      width, height, map.layers, kStyle);
  text += text_at(16, 28, "start", "Similarity of layers", "title") + text_at(16, 48, "start", escaped(map.model)) +
          text_at(16, kTop - 10, "start", "set of layer");
  for (int a = 0; a < map.layers; ++a) {
    for (int b = a; b < map.layers; ++b) {
      const double value = map.values[static_cast<std::size_t>(a * map.layers + b)];
      text += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>layer {} with the set of layer {}: "
          "{:.3f}</title></rect>\n",
          kLeft + b * kCell, kTop + a * kCell, kCell, kCell, colour(value), b, a, value);
    }
  }
  for (int layer = 0; layer < map.layers; ++layer) {
    const bool chosen = std::find(map.anchors.begin(), map.anchors.end(), layer) != map.anchors.end();
    const int middle = kCell / 2 + layer * kCell;
    if (chosen || layer % kEvery == 0) {
      text += text_at(kLeft - 6, kTop + middle + 4, "end",
                      chosen ? fmt::format("anchor {}", layer) : fmt::format("{}", layer), chosen ? "anchor" : "");
    }
    if (layer % kEvery == 0) text += text_at(kLeft + middle, kTop + side + 16, "middle", fmt::format("{}", layer));
    if (!chosen) continue;
    text += fmt::format("<rect class=\"row\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft + layer * kCell,
                        kTop + layer * kCell, side - layer * kCell, kCell);
  }
  text += text_at(kLeft + side / 2, kTop + side + 34, "middle", "read by layer") + legend(16, height - 40);
  return text + text_at(164, height - 30, "start", "share of the mass of its own set") + "</svg>\n";
}

}  // namespace glimpse::cli

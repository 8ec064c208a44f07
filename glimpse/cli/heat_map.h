// The similarity of layers as a picture: Kascade's figure of which layers attend alike (section 3.2). A function of its
// arguments; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace glimpse::cli {

struct HeatMap {
  std::string_view model;
  int layers = 0;
  std::span<const double> values;  ///< [layer whose set is read, layer that reads it], 0 to 1
  std::span<const int> anchors;    ///< rows of these are marked
};

/// One SVG file. Each cell has its layers and its value as a title.
std::string heat_map(const HeatMap& map);

}  // namespace glimpse::cli

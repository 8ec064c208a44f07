#include "glimpse/model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>

#include "glimpse/model/file_error.h"
#include "glimpse/model/gguf_reader.h"

namespace glimpse::model {
namespace {

constexpr std::int64_t kMaxParts = 65535;  // split.count is 16 bits wide

/// PREFIX-00002-of-00003.gguf
struct PartName {
  std::string prefix;
  int part = 0;  ///< from 1
  int count = 0;
};

std::optional<PartName> parse_part_name(const std::string& name) {
  constexpr std::string_view kShape = "-00000-of-00000.gguf";
  if (name.size() <= kShape.size()) return std::nullopt;
  const std::string_view tail = std::string_view(name).substr(name.size() - kShape.size());
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool fits = kShape[i] == '0' ? std::isdigit(static_cast<unsigned char>(tail[i])) != 0 : tail[i] == kShape[i];
    if (!fits) return std::nullopt;
  }
  PartName result;
  result.prefix = name.substr(0, name.size() - kShape.size());
  result.part = std::stoi(std::string(tail.substr(1, 5)));
  result.count = std::stoi(std::string(tail.substr(10, 5)));
  return result;
}

std::filesystem::path part_path(const std::filesystem::path& path, const PartName& name, int part) {
  return path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, part, name.count);
}

/// What a part says of its place; a file without the keys is whole.
struct SplitKeys {
  std::int64_t index = 0, count = 1, tensors = -1;
};

std::int64_t split_key(const Metadata& metadata, std::string_view key, std::int64_t absent, const std::string& label) {
  const MetaValue* value = metadata.find(key);
  if (value == nullptr) return absent;
  const auto number = metadata.integer(key);
  if (!number || value->type == MetaType::boolean) fail_file(label, "{} is not an integer", key);
  return *number;
}

SplitKeys split_keys(const Metadata& metadata, const std::string& label) {
  SplitKeys keys;
  keys.index = split_key(metadata, "split.no", 0, label);
  keys.count = split_key(metadata, "split.count", 1, label);
  keys.tensors = split_key(metadata, "split.tensors.count", -1, label);
  if (keys.count == 0) keys.count = 1;  // how llama.cpp marks a merged file
  if (keys.count < 1 || keys.count > kMaxParts) {
    fail_file(label, "split.count is {}; it must be from 1 to {}", keys.count, kMaxParts);
  }
  if (keys.index < 0 || keys.index >= keys.count) {
    fail_file(label, "split.no is {} but split.count is {}", keys.index, keys.count);
  }
  return keys;
}

void sort_by_name(std::vector<TensorInfo>& tensors, const std::string& label) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(tensors.begin(), tensors.end(),
                                       [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twin != tensors.end()) fail_file(label, "tensor '{}' appears twice", twin->name);
}

/// `part` (from 0) of a split model must agree with what the opened file said of the whole.
void check_part(const GgufPart& part, int index, const SplitKeys& whole, const std::string& label) {
  const SplitKeys keys = split_keys(part.metadata, label);
  if (keys.count != whole.count || keys.tensors != whole.tensors) {
    fail_file(label, "does not belong to the same split model: it says {} parts and {} tensors, another part {} and {}",
              keys.count, keys.tensors, whole.count, whole.tensors);
  }
  if (keys.index != index) {
    fail_file(label, "is named part {} but its split.no says part {}", index + 1, keys.index + 1);
  }
}

}  // namespace

std::vector<std::filesystem::path> model_parts(const std::filesystem::path& path) {
  const auto name = parse_part_name(path.filename().string());
  if (!name || name->count < 2) return {path};
  std::vector<std::filesystem::path> parts;
  for (int part = 1; part <= name->count; ++part) parts.push_back(part_path(path, *name, part));
  return parts;
}

GgufFile::GgufFile(const std::filesystem::path& path) : label_(path.string()) {
  files_.emplace_back(path);
  GgufPart first = read_gguf(files_.front().bytes(), label_);
  const SplitKeys whole = split_keys(first.metadata, label_);
  const auto name = parse_part_name(path.filename().string());
  const int named_count = name ? name->count : 1;
  if (whole.count != named_count && (whole.count > 1 || named_count > 1)) {
    fail_file(label_, "split.count is {} but the file name says {}; parts are named NAME-00001-of-{:05}.gguf",
              whole.count, named_count, std::max<std::int64_t>(whole.count, named_count));
  }
  if (whole.count == 1) {
    metadata_ = std::move(first.metadata);
    tensors_ = std::move(first.tensors);
    sort_by_name(tensors_, label_);
    return;
  }
  check_part(first, name->part - 1, whole, label_);
  for (int index = 0; index < named_count; ++index) {
    GgufPart other;
    if (index != name->part - 1) {
      const auto sibling = part_path(path, *name, index + 1);
      files_.emplace_back(sibling);
      other = read_gguf(files_.back().bytes(), sibling.string());
      check_part(other, index, whole, sibling.string());
    }
    GgufPart& part = index == name->part - 1 ? first : other;
    if (index == 0) metadata_ = std::move(part.metadata);
    tensors_.insert(tensors_.end(), std::make_move_iterator(part.tensors.begin()),
                    std::make_move_iterator(part.tensors.end()));
  }
  if (whole.tensors >= 0 && static_cast<std::size_t>(whole.tensors) != tensors_.size()) {
    fail_file(label_, "split.tensors.count is {} but the {} parts hold {} tensors", whole.tensors, named_count,
              tensors_.size());
  }
  sort_by_name(tensors_, label_);
}

GgufFile::GgufFile(std::span<const std::byte> bytes, const std::string& label) : label_(label) {
  GgufPart part = read_gguf(bytes, label_);
  const SplitKeys keys = split_keys(part.metadata, label_);
  if (keys.count > 1)
    fail_file(label_, "is part {} of {}; a split model must be opened by path", keys.index + 1, keys.count);
  metadata_ = std::move(part.metadata);
  tensors_ = std::move(part.tensors);
  sort_by_name(tensors_, label_);
}

const TensorInfo* GgufFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace glimpse::model

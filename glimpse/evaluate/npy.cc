#include "glimpse/evaluate/npy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {
namespace {

// Version 1.0: magic, header length, a Python dictionary padded with spaces to a multiple of 64 bytes.
std::string npy_header(std::int64_t rows, std::int64_t columns) {
  constexpr std::size_t kPreamble = 10, kAlignment = 64;
  std::string dictionary =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  while ((kPreamble + dictionary.size() + 1) % kAlignment != 0) dictionary += ' ';
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace

NpyWriter::NpyWriter(std::filesystem::path path, std::int64_t rows, std::int64_t columns)
    : path_(std::move(path)), rows_(rows), columns_(columns) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw UserError(fmt::format("'{}' is not a regular file; give the name of a file to write", path_.string()));
  }
  temporary_ = path_;
  temporary_ += fmt::format(".part{}", ::getpid());
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) refuse("open", errno);
  const std::string header = npy_header(rows, columns);
  try {
    write(header.data(), header.size());
  } catch (...) {
    ::close(file_);
    std::filesystem::remove(temporary_, ignored);
    throw;
  }
}

NpyWriter::~NpyWriter() {
  if (file_ < 0) return;
  ::close(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void NpyWriter::add(std::span<const float> row) {
  check(static_cast<std::int64_t>(row.size()) == columns_ && written_ < rows_, "a row of the announced matrix");
  write(row.data(), row.size_bytes());
  ++written_;
}

void NpyWriter::finish() {
  check(written_ == rows_, "all announced rows are written");
  const int file = file_;
  file_ = -1;
  std::error_code error;
  // close reports what a full disk or a quota refused late.
  if (::close(file) != 0) error = {errno, std::generic_category()};
  if (!error) std::filesystem::rename(temporary_, path_, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
  refuse("finish", error.value());
}

void NpyWriter::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file_, next, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) refuse("write", done == 0 ? ENOSPC : errno);
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void NpyWriter::refuse(const char* what, int error) const {
  throw UserError(
      fmt::format("cannot {} '{}' ({} x {} floats): {}", what, path_.string(), rows_, columns_, std::strerror(error)));
}

}  // namespace glimpse::evaluate

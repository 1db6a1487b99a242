#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/temporary_directory.hpp"

namespace hangtrace::tests {

/// A recorded /proc below a temporary directory, removed at the end.
class FakeProc {
 public:
  const std::string& root() const { return directory_.path(); }

  void write(const std::string& path, std::string_view content) const {
    const std::filesystem::path file = std::filesystem::path(root()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace hangtrace::tests

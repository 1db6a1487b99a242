#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace hangtrace::tests {

/// A recorded /proc below a temporary directory, removed at the end.
class FakeProc {
 public:
  FakeProc() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fake-proc-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~FakeProc() {
    std::error_code ignored;  // a leftover in the temporary directory is no failure of the test
    std::filesystem::remove_all(root_, ignored);
  }
  FakeProc(const FakeProc&) = delete;
  FakeProc& operator=(const FakeProc&) = delete;

  const std::string& root() const { return root_; }

  void write(const std::string& path, std::string_view content) const {
    const std::filesystem::path file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
  }

 private:
  std::string root_;
};

}  // namespace hangtrace::tests

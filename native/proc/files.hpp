#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hangtrace::proc {

/// Whole content of a small or growing pseudo file, relative to `directory` (AT_FDCWD: as is). nullopt with
/// errno set if it cannot be opened or read (ENOENT and ESRCH: gone; EACCES and EPERM: not permitted).
std::optional<std::string> read_file(int directory, const char* path, std::size_t expected_size = 4096);
std::optional<std::string> read_file(const std::string& path, std::size_t expected_size = 4096);

std::optional<std::string> read_link(const std::string& path);

/// <proc_root>/PID/<name>
std::string process_path(const std::string& proc_root, int pid, std::string_view name);

/// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return descriptor;
  }

 private:
  int descriptor_;
};

}  // namespace hangtrace::proc

#include "proc/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace hangtrace::proc {

namespace {
constexpr std::size_t largest_file = std::size_t{1} << 30;
}

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
    descriptor_ = other.release();
  }
  return *this;
}

std::optional<std::string> read_file(int directory, const char* path, std::size_t expected_size) {
  const Descriptor file(openat(directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    return std::nullopt;
  }
  std::string content(expected_size, '\0');
  std::size_t size = 0;
  for (;;) {
    if (size == content.size()) {
      if (size >= largest_file) {
        errno = EFBIG;
        return std::nullopt;
      }
      content.resize(size * 2 + 256);
    }
    const ssize_t got = read(file.get(), content.data() + size, content.size() - size);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return std::nullopt;
    }
    if (got == 0) {
      break;
    }
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  return content;
}

std::optional<std::string> read_file(const std::string& path, std::size_t expected_size) {
  return read_file(AT_FDCWD, path.c_str(), expected_size);
}

std::optional<std::string> read_link(const std::string& path) {
  std::array<char, 4096> target;
  const ssize_t size = readlink(path.c_str(), target.data(), target.size());
  if (size < 0) {
    return std::nullopt;
  }
  return std::string(target.data(), static_cast<std::size_t>(size));
}

std::string process_path(const std::string& proc_root, int pid, std::string_view name) {
  std::string path = proc_root;
  path += '/';
  path += std::to_string(pid);
  path += '/';
  path += name;
  return path;
}

}  // namespace hangtrace::proc

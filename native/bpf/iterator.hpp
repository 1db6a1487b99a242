#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bpf/btf.hpp"
#include "proc/files.hpp"

namespace hangtrace::bpf {

/// The kernel's type information, mapped where that can be done (since Linux 6.16), which saves a copy, else
/// read.
class TypeInformation {
 public:
  explicit TypeInformation(const std::string& path);
  ~TypeInformation();
  TypeInformation(const TypeInformation&) = delete;
  TypeInformation& operator=(const TypeInformation&) = delete;

  /// 0, or the errno of reading it.
  int error() const { return error_; }
  /// nullopt if it could not be read or makes no sense.
  const std::optional<Btf>& types() const { return types_; }

 private:
  std::span<const std::byte> bytes() const;

  int error_ = 0;
  std::size_t size_ = 0;
  void* mapped_ = nullptr;
  std::optional<std::string> text_;
  std::optional<Btf> types_;
};

/// EPERM or EACCES if this user may load no programs, else 0. To be asked before the type information is
/// read, which costs.
int refusal();

/// Loads a program for the iterator whose function in the type information is `iterator`. 0, or errno.
/// `name` has 15 characters at most.
int load_iterator(std::span<const bpf_insn> code, std::uint32_t iterator, const char* name,
                  proc::Descriptor& into);

/// Threads to iterate over: one, those of one process, or (both 0) all; since Linux 6.1, errno is E2BIG or
/// EINVAL before.
struct Whose {
  int pid = 0;
  int tid = 0;
};

/// Runs a loaded program over them. `take` gets what the kernel wrote, piece by piece, and says whether to go
/// on. False, with errno set, if it cannot be done.
bool run_iterator(const proc::Descriptor& program, Whose whose, std::size_t piece,
                  const std::function<bool(std::span<const std::byte>)>& take);

/// All records that the program wrote; nullopt, with errno set, if it cannot be run.
template <class Record>
std::optional<std::vector<Record>> records(const proc::Descriptor& program, Whose whose) {
  constexpr std::size_t piece = 64 << 10;
  constexpr std::size_t most_bytes = 64 << 20;
  std::vector<std::byte> all;
  const bool done = run_iterator(program, whose, piece, [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
    return all.size() < most_bytes;
  });
  if (!done) {
    return std::nullopt;
  }
  std::vector<Record> result(all.size() / sizeof(Record));
  std::memcpy(static_cast<void*>(result.data()), all.data(), result.size() * sizeof(Record));
  return result;
}

/// Whether ids of threads as we see them are those that the kernel keeps.
bool in_first_namespace();

}  // namespace hangtrace::bpf

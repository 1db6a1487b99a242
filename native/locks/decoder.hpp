#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "locks/decode.hpp"
#include "locks/glibc.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

inline constexpr std::string_view owner_died = "owner thread died holding it";
inline constexpr std::uint32_t most_users = 1u << 20;

/// Decodes one call of the futex system call. What it takes an object for is in the files of the objects.
class Decoder {
 public:
  Decoder(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process)
      : call_(call), frames_(frames), process_(process) {}

  Lock run();

 private:
  void dispatch();
  bool musl() const { return process_.library == CLibrary::musl; }
  /// Nobody could name a frame: the C library is stripped, or was entered by a tail call.
  void unnamed();
  void join();
  void low_level();

  // owner.cpp
  std::optional<SharedKey> shared_key(Address word) const;
  std::string shared_file(Address word) const;
  bool whose_is_unknown(int tid);
  /// Takes a recorded owner. `shared`: a thread of another process may hold it.
  void set_owner(std::int64_t recorded, std::string_view from, bool shared);
  /// Robust and priority inheriting mutexes: the kernel keeps the owner's id in the word itself.
  void owner_from_word();

  // mutex.cpp
  static bool plausible(const glibc::Mutex& mutex);
  bool shared_flag_agrees(const glibc::Mutex& mutex) const;
  void mutex();
  void unnamed_mutex();

  // musl_mutex.cpp
  /// `named`: a frame says that it is a mutex; else its content must. False: that is not what lies there.
  bool musl_mutex(bool named);
  void set_musl_mutex(const musl::Mutex& mutex, Address address);
  bool musl_join();

  // parked_mutex.cpp
  bool is_parked() const;
  void parked();
  void musl_parked();

  // condition.cpp
  void condition();
  void find_condition();

  void rwlock();  // rwlock.cpp

  /// Words of the stack, of no more than a large frame; empty if they cannot be read.
  std::vector<std::uint64_t> stack_words(Address begin, Address end) const;
  /// Where they may point to, each once.
  std::vector<Address> pointers_on_stack(Address begin, Address end) const;

  const FutexCall& call_;
  std::span<const FrameHint> frames_;
  const ProcessView& process_;
  Recognized recognized_;
  bool exact_ = true;  // a recorded id means one thread alone
  Lock lock_;
};

}  // namespace hangtrace::locks

#pragma once

#include <string>

namespace hangtrace::registers {

/// What became of one way to get at registers.
enum class RungState {
  unused,   // nothing needed it
  used,     // it worked
  refused,  // this user may not
  absent,   // this kernel cannot
  failed,
  limited,  // it worked, but not for all
};

struct RungStatus {
  RungState state = RungState::unused;
  std::string reason;  // for people; empty if used or unused
};

/// In words that keep: "used", "refused", …
const char* name(RungState state);

/// EPERM and EACCES: refused; the rest: failed. The reason is "<what>: <message>".
RungStatus status_of(int error, const char* what);

/// The same of loading a program where programs may be loaded. EINVAL: absent, since that is what a kernel
/// answers that lacks a function which the program calls.
RungStatus status_of_load(int error);

/// Where the iterator or the fields that a program needs are not in the type information. Fields that a newer
/// kernel has renamed are no lack of the kernel: failed.
RungStatus status_of_missing(bool iterator, const char* what);

/// The same of reading the kernel's type information from this file: absent if there is none.
RungStatus status_of_types(int error, const std::string& path);

}  // namespace hangtrace::registers

#include "elf/open.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif

#include "proc/files.hpp"

namespace hangtrace::elf {

namespace {

// O_PATH first: it has no effect on what it opens.
std::unique_ptr<FileSource> reopen(const proc::Descriptor& handle) {
  struct stat status {};
  if (!handle || ::fstat(handle.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  const std::string again = "/proc/self/fd/" + std::to_string(handle.get());
  const int fd = ::open(again.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  return fd < 0 ? nullptr : FileSource::adopt(fd);
}

}  // namespace

std::unique_ptr<FileSource> open_regular(const std::string& path) {
  return reopen(proc::Descriptor(::open(path.c_str(), O_PATH | O_CLOEXEC)));
}

std::unique_ptr<FileSource> open_below(const std::string& root, const std::string& path) {
#if defined(SYS_openat2) && defined(RESOLVE_IN_ROOT)
  const proc::Descriptor base(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!base) return nullptr;
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, base.get(), path.c_str(), &how, sizeof how);
  if (fd >= 0) return reopen(proc::Descriptor(static_cast<int>(fd)));
  // EPERM: a seccomp filter that does not know the call.
  if (errno != ENOSYS && errno != EPERM) return nullptr;
#endif
  return open_regular(root == "/" ? path : root + path);
}

bool is_mapped(const FileSource& source, const proc::Mapping& mapping) {
  const FileIdentity& identity = source.identity();
  return identity.inode == mapping.inode && identity.dev_major == mapping.dev_major &&
         identity.dev_minor == mapping.dev_minor;
}

}  // namespace hangtrace::elf

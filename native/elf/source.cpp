#include "elf/source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hangtrace::elf {

namespace {

constexpr std::size_t block_size = 4096;
constexpr std::size_t max_blocks = 512;
constexpr std::uint64_t prefetch_step = 128 << 10;

std::int64_t modified_ns(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

FileSource::FileSource(int fd, std::uint64_t size, std::int64_t mtime, FileIdentity identity, unsigned owner)
    : fd_(fd), size_(size), mtime_ns_(mtime), identity_(identity), owner_(owner) {}

FileSource::~FileSource() {
  ::close(fd_);
}

std::unique_ptr<FileSource> FileSource::adopt(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return nullptr;
  }
  const FileIdentity identity{major(status.st_dev), minor(status.st_dev),
                              static_cast<std::uint64_t>(status.st_ino)};
  return std::unique_ptr<FileSource>(new FileSource(fd, static_cast<std::uint64_t>(status.st_size),
                                                    modified_ns(status), identity, status.st_uid));
}

std::size_t FileSource::read_some(std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t count =
        ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

std::size_t FileSource::read_cached(std::uint64_t offset, std::span<std::byte> into) const {
  const iovec piece{into.data(), into.size()};
  const ssize_t count = ::preadv2(fd_, &piece, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  if (count >= 0) return static_cast<std::size_t>(count);
  return errno == EAGAIN ? 0 : read_some(offset, into);  // not every file system can say it
}

void FileSource::prefetch(std::uint64_t offset, std::uint64_t size) const {
  // The kernel takes no more than its read-ahead window of what is asked for at once.
  for (const std::uint64_t end = offset + size; offset < end; offset += prefetch_step) {
    const std::uint64_t count = std::min(prefetch_step, end - offset);
    ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(count), POSIX_FADV_WILLNEED);
  }
}

bool FileSource::changed() const {
  struct stat status {};
  return ::fstat(fd_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size_ ||
         modified_ns(status) != mtime_ns_;
}

std::size_t BufferSource::read_some(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset >= bytes_.size()) return 0;
  const std::size_t count = std::min<std::uint64_t>(into.size(), bytes_.size() - offset);
  if (count != 0) std::memcpy(into.data(), bytes_.data() + offset, count);
  return count;
}

const CachedReader::Block& CachedReader::block(std::uint64_t index) const {
  const auto found = blocks_.find(index);
  if (found != blocks_.end()) return found->second;
  if (blocks_.size() >= max_blocks) blocks_.clear();
  Block block{std::make_unique_for_overwrite<std::byte[]>(block_size), 0};
  block.size = source_->read_some(index * block_size, std::span(block.bytes.get(), block_size));
  return blocks_.emplace(index, std::move(block)).first->second;
}

bool CachedReader::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > source_->size() || into.size() > source_->size() - offset) return false;
  if (into.size() > 4 * block_size) return read_through(offset, into);
  const std::lock_guard lock(mutex_);
  while (!into.empty()) {
    const Block& found = block(offset / block_size);
    const std::size_t within = offset % block_size;
    if (within >= found.size) return false;
    const std::size_t count = std::min(into.size(), found.size - within);
    std::memcpy(into.data(), found.bytes.get() + within, count);
    into = into.subspan(count);
    offset += count;
  }
  return true;
}

void CachedReader::prefetch(std::uint64_t offset, std::uint64_t size) const {
  const std::uint64_t end = source_->size();
  if (offset >= end || size == 0) return;
  source_->prefetch(offset, std::min(size, end - offset));
}

bool CachedReader::read_through(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > source_->size() || into.size() > source_->size() - offset) return false;
  return source_->read_some(offset, into) == into.size();
}

}  // namespace hangtrace::elf

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace hangtrace::elf {

/// The bytes of an ELF file. Files are read with pread, never mapped: a library that is truncated while a
/// mapping of it is being read would kill the reader with SIGBUS, a short pread is only a failed lookup.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  /// Reads up to into.size() bytes at `offset`; returns how many were read (0 on any error).
  virtual std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const = 0;
  /// Whether the content may have changed since it was opened.
  virtual bool changed() const { return false; }
  /// Reads what can be had without waiting for a disk; like read_some where that cannot be told.
  virtual std::size_t read_cached(std::uint64_t offset, std::span<std::byte> into) const {
    return read_some(offset, into);
  }
  /// Starts reading these bytes from the disk, without waiting for them.
  virtual void prefetch(std::uint64_t, std::uint64_t) const {}
};

struct FileIdentity {
  std::uint32_t dev_major = 0;
  std::uint32_t dev_minor = 0;
  std::uint64_t inode = 0;
};

/// Owns the descriptor, so the inode number cannot be reused while the source lives.
class FileSource final : public Source {
 public:
  static std::unique_ptr<FileSource> adopt(int fd);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  std::uint64_t size() const override { return size_; }
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const override;
  std::size_t read_cached(std::uint64_t offset, std::span<std::byte> into) const override;
  void prefetch(std::uint64_t offset, std::uint64_t size) const override;
  bool changed() const override;
  const FileIdentity& identity() const { return identity_; }
  unsigned owner() const { return owner_; }  // user id
  std::int64_t mtime_ns() const { return mtime_ns_; }

 private:
  FileSource(int fd, std::uint64_t size, std::int64_t mtime_ns, FileIdentity identity, unsigned owner);
  int fd_;
  std::uint64_t size_;
  std::int64_t mtime_ns_;
  FileIdentity identity_;
  unsigned owner_;
};

class BufferSource final : public Source {
 public:
  explicit BufferSource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const override;

 private:
  std::vector<std::byte> bytes_;
};

/// Small reads in front of a Source, served from a bounded set of blocks. From several threads.
class CachedReader {
 public:
  explicit CachedReader(std::unique_ptr<Source> source) : source_(std::move(source)) {}
  const Source& source() const { return *source_; }
  /// Fills all of `into` or returns false (and leaves `into` unspecified).
  bool read(std::uint64_t offset, std::span<std::byte> into) const;
  /// Like read, but past the blocks: for long sequential reads.
  bool read_through(std::uint64_t offset, std::span<std::byte> into) const;
  /// Starts reading from the disk what lies there and is not in memory.
  void prefetch(std::uint64_t offset, std::uint64_t size) const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size;
  };
  const Block& block(std::uint64_t index) const;
  std::unique_ptr<Source> source_;
  mutable std::mutex mutex_;  // of blocks_
  mutable std::unordered_map<std::uint64_t, Block> blocks_;
};

}  // namespace hangtrace::elf

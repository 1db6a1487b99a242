#pragma once

#include <string>
#include <vector>

#include "memory/reader.hpp"
#include "nccl/communicator.hpp"
#include "nccl/find_layout.hpp"
#include "proc/files.hpp"
#include "proc/maps.hpp"

namespace hangtrace::nccl {

/// Pages of a process that are in memory, as /proc/PID/pagemap tells: reading others would bring them in.
class PresentPages {
 public:
  virtual ~PresentPages() = default;
  /// Ranges of whole pages within [from, to) that are present, in order; all of it if that cannot be told.
  virtual std::vector<std::pair<Address, Address>> within(Address from, Address to) const = 0;
};

class PageMap final : public PresentPages {
 public:
  PageMap(const std::string& proc_root, int pid);
  std::vector<std::pair<Address, Address>> within(Address from, Address to) const override;

 private:
  proc::Descriptor descriptor_;
};

struct SearchResult {
  std::vector<Communicator> found;
  bool complete = true;  // false: the deadline came first
};

/// Searches private writable memory without a file (the heap, and what was allocated in pages of its own) for
/// communicators: by their magic number if the layout has one, else by the run of small numbers around the
/// rank.
SearchResult search(const memory::Reader& memory, const std::vector<proc::Mapping>& mappings,
                    const PresentPages& pages, const Layout& layout, Deadline deadline);

}  // namespace hangtrace::nccl

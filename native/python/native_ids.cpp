#include "python/native_ids.hpp"

#include <array>

#include "python/objects.hpp"

namespace hangtrace::python {
namespace {

constexpr std::int32_t kPidLimit = 1 << 22;  // PID_MAX_LIMIT

struct Head {
  std::array<Address, 3> first{};
  std::array<Address, 2> links{};
  std::int32_t tid = 0;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

std::vector<int> tids_of_pthreads(const memory::Reader& reader, const std::vector<std::uint64_t>& idents,
                                  const PthreadLayout& layout) {
  std::vector<Head> heads(idents.size());
  Batch batch(reader);
  for (std::size_t i = 0; i < idents.size(); ++i) {
    const Address at = plausible(idents[i]) ? idents[i] : 0;
    batch.add(at, bytes_of(heads[i].first));
    batch.add(at + layout.tid, bytes_of(heads[i].tid));
    if (!layout.names_itself) batch.add(at + layout.links, bytes_of(heads[i].links));
  }
  const std::size_t reads = layout.names_itself ? 2 : 3;
  std::vector<bool> done = batch.read();
  std::vector<bool> sound(idents.size());
  for (std::size_t i = 0; i < idents.size(); ++i) {
    const Head& head = heads[i];
    sound[i] = done[reads * i] && done[reads * i + 1] && head.tid > 0 && head.tid < kPidLimit;
    if (layout.names_itself) {
      sound[i] = sound[i] && head.first[0] == idents[i] && head.first[2] == idents[i];
    } else {
      sound[i] = sound[i] && done[reads * i + 2] && plausible(head.links[0]) && plausible(head.links[1]);
    }
  }
  if (!layout.names_itself) {
    // Its neighbours in the list point back to it.
    std::vector<std::array<Address, 2>> back(idents.size());
    for (std::size_t i = 0; i < idents.size(); ++i) {
      batch.add(sound[i] ? heads[i].links[0] + 8 : 0, bytes_of(back[i][0]));
      batch.add(sound[i] ? heads[i].links[1] : 0, bytes_of(back[i][1]));
    }
    done = batch.read();
    for (std::size_t i = 0; i < idents.size(); ++i) {
      const Address links = idents[i] + layout.links;
      sound[i] = sound[i] && done[2 * i] && done[2 * i + 1] && back[i][0] == links && back[i][1] == links;
    }
  }
  std::vector<int> result(idents.size());
  for (std::size_t i = 0; i < idents.size(); ++i) {
    if (sound[i]) result[i] = heads[i].tid;
  }
  return result;
}

}  // namespace hangtrace::python

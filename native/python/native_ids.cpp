#include "python/native_ids.hpp"

#include <array>
#include <cstring>

#include "python/objects.hpp"

namespace hangtrace::python {

std::vector<int> tids_of_pthreads(const memory::Reader& reader, const std::vector<std::uint64_t>& idents) {
  std::vector<int> result(idents.size());
#if defined(__x86_64__)
  // nptl/descr.h and sysdeps/x86_64/nptl/tls.h: tcbhead_t {void *tcb; dtv_t *dtv; void *self; ...} first,
  // both pointers to the struct itself; `pid_t tid` at 720 in every glibc since 2.4.
  constexpr Address kSelf = 16;
  constexpr Address kTid = 720;
  struct Head {
    std::array<Address, 3> tcb;
    std::int32_t tid;
  };
  std::vector<Head> heads(idents.size());
  Batch batch(reader);
  for (std::size_t i = 0; i < idents.size(); ++i) {
    const Address at = plausible(idents[i]) ? idents[i] : 0;
    batch.add(at, std::as_writable_bytes(std::span(heads[i].tcb)));
    batch.add(at + kTid, std::as_writable_bytes(std::span(&heads[i].tid, 1)));
  }
  const std::vector<bool> done = batch.read();
  for (std::size_t i = 0; i < idents.size(); ++i) {
    const Head& head = heads[i];
    if (!done[2 * i] || !done[2 * i + 1]) continue;
    if (head.tcb[0] != idents[i] || head.tcb[kSelf / 8] != idents[i]) continue;
    if (head.tid > 0 && head.tid < (1 << 22)) result[i] = head.tid;  // PID_MAX_LIMIT
  }
#else
  static_cast<void>(reader);
#endif
  return result;
}

}  // namespace hangtrace::python

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <unordered_set>

#include "python/threads.hpp"

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxFrames = 8192;          // of one thread, innermost
constexpr std::size_t kMaxOutermost = 64;         // kept behind those that are left out
constexpr std::size_t kMaxWalked = 1 << 17;       // of one thread
constexpr std::size_t kMaxStrays = 1024;          // beyond the innermost, outside of its chunks: a read each
constexpr std::size_t kMaxAllFrames = 1 << 18;    // of a process
constexpr std::size_t kMaxChunks = 256;           // of one thread
constexpr std::uint64_t kMaxChunkSize = 1 << 20;  // bytes
constexpr std::size_t kMaxChunkBytes = 64 << 20;  // of all threads
constexpr std::size_t kMaxBlocks = 20;            // CO_MAXBLOCKS before 3.11
constexpr std::size_t kMaxSlotBytes = 64 << 20;   // of all frames

// enum _frameowner, Include/internal/pycore_frame.h (3.14: pycore_interpframe_structs.h).
constexpr int kOwnedByGenerator = 1;
constexpr int kOwnedByC = 3;  // since 3.12, and whatever is greater: no Python code of its own
constexpr int kLastOwner = 4;

struct Chunk {
  Address from = 0;
  std::vector<std::byte> bytes;
};

class Walk {
 public:
  Walk(Objects& objects, CodeCache& codes, const std::vector<ThreadState>& threads)
      : objects_(objects),
        layout_(objects.layout()),
        reader_(objects.reader()),
        codes_(codes),
        threads_(threads) {
    chunks_.resize(threads.size());
    chains_.resize(threads.size());
    newest_chunk_.resize(threads.size());
    outer_.resize(threads.size());
  }

  std::vector<FrameChain> run() {
    read_chunks();
    walk();
    add_outermost();
    check_codes();
    read_slots();
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      if (layout_.thread_stack_mark >= 0) chains_[i].on_c_stack = threads_[i].stack_mark;
    }
    return std::move(chains_);
  }

 private:
  // Every frame of ordinary functions lies in the chunks of its thread's data stack: with them read at once
  // most of the walk needs no further read.
  void read_chunks() {
    if (layout_.thread_chunk < 0) return;
    std::vector<std::pair<std::size_t, Address>> open;
    for (std::size_t i = 0; i < threads_.size(); ++i) open.emplace_back(i, threads_[i].chunk);
    std::size_t total = 0;
    for (std::size_t round = 0; round < kMaxChunks && !open.empty(); ++round) {
      std::erase_if(open, [](const auto& one) { return !plausible(one.second); });
      std::vector<std::array<Address, 2>> heads(open.size());
      Batch batch(reader_);
      for (std::size_t k = 0; k < open.size(); ++k) {
        batch.add(open[k].second + layout_.chunk_previous,
                  std::as_writable_bytes(std::span(&heads[k][0], 1)));
        batch.add(open[k].second + layout_.chunk_size, std::as_writable_bytes(std::span(&heads[k][1], 1)));
      }
      batch.read();
      for (std::size_t k = 0; k < open.size(); ++k) {
        std::uint64_t size = heads[k][1];
        if (round == 0) size = used_bytes(threads_[open[k].first], size);
        if (size < 64 || size > kMaxChunkSize || total + size > kMaxChunkBytes) {
          open[k].second = 0;
          continue;
        }
        total += size;
        chunks_[open[k].first].push_back({open[k].second, std::vector<std::byte>(size)});
        open[k].second = heads[k][0];
      }
    }
    Batch batch(reader_);
    for (auto& list : chunks_) {
      for (Chunk& chunk : list) batch.add(chunk.from, chunk.bytes);
    }
    const std::vector<bool> done = batch.read();
    std::size_t k = 0;
    for (auto& list : chunks_) {
      std::erase_if(list, [&](const Chunk&) { return !done[k++]; });
    }
  }

  // Of the newest chunk, from which the thread takes more as it goes; all of it if that cannot be.
  static std::uint64_t used_bytes(const ThreadState& thread, std::uint64_t size) {
    const std::uint64_t used = thread.chunk_top - thread.chunk;
    return thread.chunk_top > thread.chunk && used <= size ? std::max<std::uint64_t>(used, 64) : size;
  }

  std::optional<std::span<const std::byte>> in_chunk(std::size_t thread, Address from, std::size_t size) {
    const std::vector<Chunk>& chunks = chunks_[thread];
    // The next frame lies mostly where the last one did.
    for (std::size_t k = 0; k < chunks.size(); ++k) {
      const std::size_t at = (newest_chunk_[thread] + k) % chunks.size();
      const Chunk& chunk = chunks[at];
      if (from >= chunk.from && from - chunk.from < chunk.bytes.size() &&
          chunk.bytes.size() - (from - chunk.from) >= size) {
        newest_chunk_[thread] = at;
        return std::span(chunk.bytes).subspan(from - chunk.from, size);
      }
    }
    return std::nullopt;
  }

  // All threads go outwards in step, so that the frames that lie elsewhere (on the heap: generators, every
  // frame before 3.11; on the C stack) cost one batch of reads a step, not one read each.
  void walk() {
    const auto head = static_cast<std::size_t>(layout_.frame_slots);
    std::vector<Address> next(threads_.size());
    std::vector<std::unordered_set<Address>> seen(threads_.size());
    std::vector<std::size_t> strays(threads_.size());
    std::vector<std::size_t> open;
    std::size_t steps = 0;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      next[i] = threads_[i].frame;
      open.push_back(i);
    }
    while (!open.empty()) {
      std::vector<std::size_t> missing;
      for (std::size_t i : open) {
        while (next[i] != 0) {
          if (!plausible(next[i]) || !seen[i].insert(next[i]).second) {
            chains_[i].problem = "the chain of frames is damaged";
            next[i] = 0;
          } else if (seen[i].size() > kMaxWalked || ++steps > kMaxAllFrames) {
            too_many(i);
            next[i] = 0;
          } else if (auto bytes = in_chunk(i, next[i], head)) {
            next[i] = take(i, next[i], *bytes);
          } else if (seen[i].size() > kMaxFrames && ++strays[i] > kMaxStrays) {
            too_many(i);
            next[i] = 0;
          } else {
            missing.push_back(i);
            break;
          }
        }
      }
      std::vector<std::byte> bodies(missing.size() * head);
      Batch batch(reader_);
      for (std::size_t k = 0; k < missing.size(); ++k) {
        batch.add(next[missing[k]], std::span(bodies).subspan(k * head, head));
      }
      const std::vector<bool> done = batch.read();
      for (std::size_t k = 0; k < missing.size(); ++k) {
        const std::size_t i = missing[k];
        if (done[k]) {
          next[i] = take(i, next[i], std::span(bodies).subspan(k * head, head));
        } else {
          chains_[i].problem = "a frame is not readable";
          next[i] = 0;
        }
      }
      open = std::move(missing);
    }
  }

  // Appends the frame, unless it only marks an entry from C; gives the address of the next outer one.
  Address take(std::size_t thread, Address address, std::span<const std::byte> bytes) {
    FrameChain& chain = chains_[thread];
    auto word = [&](int offset) { return load<std::uint64_t>(bytes, static_cast<std::size_t>(offset)); };
    const Address previous = word(layout_.frame_previous);
    Frame frame;
    frame.address = address;
    frame.code = word(layout_.frame_code);
    if (layout_.minor >= 13) frame.code = untagged(frame.code);
    if (layout_.frame_tlbc_index >= 0) {
      frame.copy = load<std::int32_t>(bytes, static_cast<std::size_t>(layout_.frame_tlbc_index));
    }
    if (layout_.frame_owner < 0) {
      frame.instruction = static_cast<std::uint32_t>(word(layout_.frame_instruction));
      frame.entry = true;
      frame.live_stack = block_depth(bytes);
    } else {
      frame.instruction = word(layout_.frame_instruction);
      const int owner = load<std::uint8_t>(bytes, static_cast<std::size_t>(layout_.frame_owner));
      if (owner > kLastOwner) {
        chain.problem = "a frame is damaged";
        return 0;
      }
      if (layout_.minor >= 12 && owner >= kOwnedByC) {
        std::vector<Frame>& last = outer_[thread].empty() ? chain.frames : outer_[thread];
        if (!last.empty()) last.back().entry = true;
        // The outermost frame of 3.15 is a part of the thread state; the others are locals of the eval loop.
        const bool in_thread_state = layout_.minor >= 15 && previous == 0;
        if (chain.on_c_stack == 0 && !in_thread_state) chain.on_c_stack = address;
        return previous;
      }
      frame.generator = owner == kOwnedByGenerator;
      if (layout_.frame_is_entry >= 0) {
        frame.entry = load<std::uint8_t>(bytes, static_cast<std::size_t>(layout_.frame_is_entry)) == 1;
      }
    }
    keep(thread, std::move(frame));
    return previous;
  }

  void keep(std::size_t thread, Frame frame) {
    FrameChain& chain = chains_[thread];
    if (chain.frames.size() < kMaxFrames) {
      chain.frames.push_back(std::move(frame));
      return;
    }
    std::vector<Frame>& outer = outer_[thread];
    outer.push_back(std::move(frame));
    if (outer.size() == 2 * kMaxOutermost) {
      outer.erase(outer.begin(), outer.begin() + kMaxOutermost);
      chain.left_out += kMaxOutermost;
    }
  }

  void too_many(std::size_t thread) {
    chains_[thread].problem = "too many frames";
    chains_[thread].left_out = 0;
    outer_[thread].clear();
  }

  void add_outermost() {
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      std::vector<Frame>& outer = outer_[i];
      const std::size_t more = outer.size() > kMaxOutermost ? outer.size() - kMaxOutermost : 0;
      chains_[i].left_out += more;
      std::move(outer.begin() + static_cast<std::ptrdiff_t>(more), outer.end(),
                std::back_inserter(chains_[i].frames));
    }
  }

  // Before 3.11 the frame itself has a stack of blocks {type, handler, level}: what lies below the level of
  // the newest one is needed by its handler.
  std::size_t block_depth(std::span<const std::byte> bytes) const {
    const auto count = load<std::int32_t>(bytes, static_cast<std::size_t>(layout_.frame_block_count));
    if (count <= 0 || count > static_cast<std::int32_t>(kMaxBlocks)) return 0;
    const auto at =
        static_cast<std::size_t>(layout_.frame_blocks) + 12 * static_cast<std::size_t>(count - 1) + 8;
    return static_cast<std::size_t>(std::clamp(load<std::int32_t>(bytes, at), 0, 65536));
  }

  void check_codes() {
    std::vector<Address> addresses;
    for (const FrameChain& chain : chains_) {
      for (const Frame& frame : chain.frames) addresses.push_back(frame.code);
    }
    codes_.add(objects_, addresses);
    const auto copies = starts_of_copies();
    for (FrameChain& chain : chains_) {
      for (std::size_t i = 0; i < chain.frames.size(); ++i) {
        Frame& frame = chain.frames[i];
        const Code* code = codes_.find(frame.code);
        if (code == nullptr) {
          chain.problem = "a frame has no readable code object";
          chain.frames.resize(i);
          break;
        }
        frame.first_stack_slot = code->named_slots;
        Address start = frame.code + static_cast<Address>(std::max(layout_.code_adaptive, 0));
        if (frame.copy != 0) {
          const auto copy = copies.find({frame.code, frame.copy});
          start = copy != copies.end() ? copy->second : 0;
        }
        if (const auto position = code->position(layout_, start, frame.instruction)) {
          frame.line = code->line(layout_, *position);
          if (layout_.minor >= 11) frame.live_stack = code->live_stack(*position).value_or(0);
        }
        frame.live_stack = std::min(frame.live_stack, code->stack_size);
      }
    }
  }

  // Since 3.14 each thread of a free-threaded build may run a copy of its own of the instructions:
  // co_tlbc points to a _PyCodeArray {Py_ssize_t size; char *entries[size]}.
  std::map<std::pair<Address, std::int32_t>, Address> starts_of_copies() const {
    std::map<std::pair<Address, std::int32_t>, Address> starts;
    if (layout_.code_tlbc < 0) return starts;
    for (const FrameChain& chain : chains_) {
      for (const Frame& frame : chain.frames) {
        if (frame.copy > 0 && codes_.find(frame.code) != nullptr) starts[{frame.code, frame.copy}] = 0;
      }
    }
    std::vector<Address> arrays(starts.size());
    Batch batch(reader_);
    std::size_t i = 0;
    for (const auto& [copy, start] : starts) {
      batch.add(copy.first + static_cast<Address>(layout_.code_tlbc), word_of(arrays[i++]));
    }
    batch.read();
    std::vector<std::array<Address, 2>> found(starts.size());
    i = 0;
    for (const auto& [copy, start] : starts) {
      const Address array = plausible(arrays[i]) ? arrays[i] : 0;
      batch.add(array, word_of(found[i][0]));
      batch.add(array + 8 + 8 * static_cast<Address>(copy.second), word_of(found[i][1]));
      ++i;
    }
    const std::vector<bool> done = batch.read();
    i = 0;
    for (auto& [copy, start] : starts) {
      const auto& [size, entry] = found[i];
      const bool there = done[2 * i] && done[2 * i + 1] && size > static_cast<Address>(copy.second);
      if (there && plausible(entry)) start = entry;
      ++i;
    }
    return starts;
  }

  static std::span<std::byte> word_of(Address& value) { return std::as_writable_bytes(std::span(&value, 1)); }

  void read_slots() {
    Batch batch(reader_);
    std::vector<Frame*> copied;
    std::vector<Frame*> wanted;
    std::size_t total = 0;
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      for (Frame& frame : chains_[i].frames) {
        const std::size_t count = frame.first_stack_slot + codes_.find(frame.code)->stack_size;
        total += 8 * count;
        if (count == 0 || total > kMaxSlotBytes) continue;
        frame.slots.resize(count);
        auto into = std::as_writable_bytes(std::span(frame.slots));
        const Address from = frame.address + static_cast<Address>(layout_.frame_slots);
        copied.push_back(&frame);
        if (auto bytes = in_chunk(i, from, into.size())) {
          std::copy(bytes->begin(), bytes->end(), into.begin());
        } else {
          wanted.push_back(&frame);
          batch.add(from, into);
        }
      }
    }
    const std::vector<bool> done = batch.read();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!done[i]) wanted[i]->slots.clear();
    }
    if (layout_.minor < 13) return;
    for (Frame* frame : copied) {
      for (Address& slot : frame->slots) slot = untagged(slot);
    }
  }

  Objects& objects_;
  const Layout& layout_;
  const memory::Reader& reader_;
  CodeCache& codes_;
  const std::vector<ThreadState>& threads_;
  std::vector<std::vector<Chunk>> chunks_;
  std::vector<std::size_t> newest_chunk_;  // in which the last frame of the thread was
  std::vector<FrameChain> chains_;
  std::vector<std::vector<Frame>> outer_;  // of each thread, beyond the innermost ones
};

// What of a thread state changes from call to call.
ThreadState read_again(const memory::Reader& reader, const Layout& layout, ThreadState thread) {
  Address place = thread.address + static_cast<Address>(std::max(layout.thread_frame, 0));
  if (layout.thread_cframe >= 0) {
    const Address cframe = reader.read_value<Address>(thread.address + layout.thread_cframe).value_or(0);
    place = plausible(cframe) ? cframe + layout.cframe_frame : 0;
  }
  thread.frame = reader.read_value<Address>(place).value_or(0);
  if (layout.thread_chunk >= 0) {
    thread.chunk = reader.read_value<Address>(thread.address + layout.thread_chunk).value_or(0);
    thread.chunk_top = 0;
  }
  return thread;
}

}  // namespace

std::vector<FrameChain> read_frames(Objects& objects, CodeCache& codes,
                                    const std::vector<ThreadState>& threads) {
  std::vector<FrameChain> chains = Walk(objects, codes, threads).run();
  std::vector<std::size_t> torn;
  std::vector<ThreadState> again;
  for (std::size_t i = 0; i < chains.size(); ++i) {
    if (chains[i].problem.empty()) continue;
    torn.push_back(i);
    again.push_back(read_again(objects.reader(), objects.layout(), threads[i]));
  }
  if (torn.empty()) return chains;
  std::vector<FrameChain> second = Walk(objects, codes, again).run();
  for (std::size_t k = 0; k < torn.size(); ++k) chains[torn[k]] = std::move(second[k]);
  return chains;
}

}  // namespace hangtrace::python

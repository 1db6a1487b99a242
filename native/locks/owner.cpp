#include "locks/decoder.hpp"

namespace hangtrace::locks {

namespace {

constexpr std::string_view no_thread = "owner thread does not exist in this process";

}  // namespace

std::optional<SharedKey> Decoder::shared_key(Address word) const {
  const proc::Mapping* const mapping = call_.is_private ? nullptr : process_.mapping_at(word);
  return mapping != nullptr ? shared_key_in(word, *mapping) : std::nullopt;
}

// Memory that was never in a directory (or is no more than a descriptor) is handed on, not found by name.
std::string Decoder::shared_file(Address word) const {
  const proc::Mapping* const mapping = process_.mapping_at(word);
  const bool inherited = mapping == nullptr || mapping->path.starts_with("/memfd:") ||
                         (mapping->deleted && mapping->path == "/dev/zero");
  return inherited ? "" : mapping->path.empty() ? "?" : mapping->path;
}

// Whose id a shared object records is not known; nothing is said of an owner then.
bool Decoder::whose_is_unknown(int tid) {
  if (!lock_.shared_key) {
    return false;
  }
  const Sharers sharers =
      process_.sharers ? process_.sharers(*lock_.shared_key, !lock_.shared_file.empty()) : Sharers::alike;
  const auto here = process_.thread_here(tid);
  const auto found = here ? here : process_.thread_anywhere(tid);
  // Whoever waits for itself may as well wait for its namesake.
  const bool doubtful = sharers == Sharers::unseen && (!found || *found == process_.waiter);
  const auto maps =
      !here && found && process_.maps ? process_.maps(*found, *lock_.shared_key) : std::optional(true);
  exact_ = sharers == Sharers::alike;
  std::string_view why;
  if (sharers == Sharers::apart || doubtful) {
    why = "of a lock shared across pid namespaces";
  } else if (!maps) {
    lock_.unseen_owner = found;
    why = "is that of a process that was not looked at";
  } else if (!*maps) {
    why = "is that of a process that does not share it";
  } else {
    return false;
  }
  if (lock_.problem.empty()) {
    lock_.problem = "owner id " + std::to_string(tid) + " " + std::string(why) + ": whose is not known";
  }
  return true;
}

void Decoder::set_owner(std::int64_t recorded, std::string_view from, bool shared) {
  if (recorded <= 0 || recorded > static_cast<std::int64_t>(glibc::futex_tid_mask)) {
    lock_.problem = "no valid owner recorded";
    return;
  }
  const int tid = static_cast<int>(recorded);
  if (shared && whose_is_unknown(tid)) {
    return;
  }
  lock_.owner_from = from;
  if (const auto here = process_.thread_here(tid)) {
    lock_.owner = *here;
    lock_.owner_exact = exact_;
    return;
  }
  lock_.owner = process_.thread_anywhere(tid);
  if (shared && lock_.owner) {
    lock_.owner_exact = exact_;
    return;
  }
  if (!shared) {
    lock_.problem = no_thread;
  } else if (process_.same_ids) {
    lock_.problem = "owner thread does not exist";
  } else {
    lock_.problem = "owner thread is in no process that was looked at";
  }
  if (!lock_.owner && process_.same_ids) {
    lock_.owner = tid;
  }
}

void Decoder::owner_from_word() {
  if (lock_.value == 0) {
    lock_.problem = "released meanwhile";
    return;
  }
  set_owner(lock_.value & glibc::futex_tid_mask, "futex word", !call_.is_private);
  if ((lock_.value & glibc::futex_owner_died) != 0) {
    lock_.problem = owner_died;
    lock_.owner_exact = false;
  }
}

}  // namespace hangtrace::locks

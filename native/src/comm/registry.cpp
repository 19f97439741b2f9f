// Pages that change their home; see registry.hpp.
#include "comm/registry.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace ccl_lab {

namespace {

constexpr std::uint64_t kPage = 4096;

std::byte* page_up(std::byte* at) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(at) + kPage - 1) / kPage * kPage);
}
std::byte* page_down(std::byte* at) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(at) / kPage * kPage);
}

// How long a fork waits for a collective that another thread runs, and for the copies that its child then makes.
constexpr std::int64_t kForkWaitsNs = 1'000'000;
constexpr int kChildCopiesMs = 60'000;

// All registries of the process, for a fork.
std::mutex& registries_mutex() {
  static auto& mutex = *new std::mutex;  // for as long as the process: a communicator may be a global
  return mutex;
}
std::vector<Registry*>& registries() {
  static auto& all = *new std::vector<Registry*>;
  return all;
}

// Gives a range pages of its own, with what it holds. False, and errno: there is no memory for them.
bool make_private(std::byte* begin, std::byte* end) {
  const auto nbytes = static_cast<std::size_t>(end - begin);
  void* const copy = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, begin, nbytes);
  if (::mremap(copy, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED) return true;
  const int why = errno;
  ::munmap(copy, nbytes);
  errno = why;
  return false;
}

// Fills pages of the arena, whose file has them from `offset` on. Written through the file, a page that is not there yet is not faulted in,
// nor zeroed before: two fifths of the time. Not under a limit of file sizes, which would end the process.
void fill(std::byte* to, int fd, std::uint64_t offset, const std::byte* from, std::uint64_t nbytes) {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  std::uint64_t done = 0;
  while (!limited && nbytes < kHugeFrom && done < nbytes) {
    const ssize_t written = ::pwrite(fd, from + done, nbytes - done, static_cast<off_t>(offset + done));
    if (written <= 0) break;
    done += static_cast<std::uint64_t>(written);
  }
  std::memcpy(to + done, from + done, nbytes - done);
}

// Open during a fork whose child copies: it ends when the child has, or there is none.
int fork_pipe[2] = {-1, -1};

}  // namespace

Registry::Registry(std::shared_ptr<RankSegment> segment, std::shared_ptr<Arena> arena, node::Group* group)
    : segment_(std::move(segment)), arena_(std::move(arena)), group_(group), file_(id_of(segment_->fd())) {
  static const int watched = ::pthread_atfork(&Registry::before_fork, &Registry::after_fork_in_parent, &Registry::after_fork_in_child);
  static_cast<void>(watched);  // fails only without memory
  const std::lock_guard lock(registries_mutex());
  registries().push_back(this);
}

// What nobody asked to register must not show in a fork: it is private again before, and shared by parent and child as all
// memory is. Where it is in use, or pinned, the child copies it while the parent waits.
void Registry::before_fork() {
  registries_mutex().lock();
  bool left = false;
  for (Registry* registry : registries()) {
    if (registry->shows_unasked()) registry->give_back_unasked();
    left = left || registry->shows_unasked();
  }
  if (left && ::pipe2(fork_pipe, O_CLOEXEC) != 0) fork_pipe[0] = fork_pipe[1] = -1;
}

void Registry::after_fork_in_parent() {
  if (fork_pipe[0] >= 0) {
    ::close(fork_pipe[1]);
    pollfd end{fork_pipe[0], POLLIN, 0};
    while (::poll(&end, 1, kChildCopiesMs) < 0 && errno == EINTR) {}
    ::close(fork_pipe[0]);
    fork_pipe[0] = fork_pipe[1] = -1;
  }
  registries_mutex().unlock();
}

// This is the child's only thread.
void Registry::after_fork_in_child() {
  forget_parent();
  for (const Registry* registry : registries()) registry->take_from_parent();
  for (int& end : fork_pipe)
    if (end >= 0) ::close(std::exchange(end, -1));
  registries_mutex().unlock();
}

// Also what was freed, and lives on in the heap: whatever shows the arena's pages and was not asked for.
void Registry::give_back_unasked() {
  if (pages_may_be_pinned()) return;
  std::vector<Mapping> shown;
  if (!find_parts(segment_->fd(), shown)) return;
  for (const std::int64_t begin_ns = now_ns(); !group_->take(); ::sched_yield())
    if (now_ns() - begin_ns > kForkWaitsNs) return;
  const bool all = std::all_of(shown.begin(), shown.end(), [&](const Mapping& m) { return was_asked_for(m.begin) || make_private(m.begin, m.end); });
  if (all) {
    std::erase_if(entries_, [&](const auto& item) {
      if (item.second.noticed) group_->remove_alias(item.first);
      return item.second.noticed;
    });
    n_noticed_ = 0;
    kept_.clear();
    seen_ = {};
    times_ = std::min(times_ * kLonger, kMostTimes);
  }
  group_->leave();
}

void Registry::take_from_parent() const {
  std::vector<Mapping> shown;
  if (!find_parts(segment_->fd(), shown))
    for (const auto& [data, entry] : entries_)
      if (entry.pages != nullptr)
        shown.push_back({entry.pages, entry.pages + entry.pages_bytes, file_offset(entry)});
  for (const Mapping& m : shown)
    if (was_asked_for(m.begin) || !make_private(m.begin, m.end))
      static_cast<void>(::mmap(m.begin, static_cast<std::size_t>(m.end - m.begin), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                               segment_->fd(), static_cast<off_t>(m.offset)));
}

bool Registry::was_asked_for(const std::byte* page) const {
  const auto after = entries_.upper_bound(const_cast<std::byte*>(page));
  if (after == entries_.begin()) return false;
  const Entry& entry = std::prev(after)->second;
  return !entry.noticed && entry.pages != nullptr && page < entry.pages + entry.pages_bytes;
}

Registry::~Registry() {
  {
    const std::lock_guard lock(registries_mutex());
    std::erase(registries(), this);
  }
  close();
}

void Registry::close() {
  // In a forked child the pages are the child's already, and the arena is the parent's.
  if (::getpid() != segment_->pid()) return;
  const std::lock_guard lock(registries_mutex());
  for (auto& [data, entry] : entries_) {
    group_->remove_alias(data);
    // Where the system has no memory left for a private copy, the pages stay shared: contents and addresses are kept.
    if (!still_there(data, entry) || !restore(entry).ok()) kept_.push_back(std::move(entry));
  }
  entries_.clear();
  n_noticed_ = 0;
  automatic_ = false;
  // Pages that somebody still has must not be given back with the arena; there is nobody left to look after them.
  for (Entry& entry : kept_)
    if (entry.block != nullptr && still_mapped(entry)) static_cast<void>(new std::shared_ptr<Block>(std::move(entry.block)));
  kept_.clear();
}

Status Registry::add(void* data, std::uint64_t nbytes) {
  const std::lock_guard lock(registries_mutex());
  return insert(static_cast<std::byte*>(data), nbytes);
}

Status Registry::insert(std::byte* begin, std::uint64_t nbytes) {
  const int rank = segment_->rank();
  const std::string what = std::to_string(nbytes) + " bytes at " + std::to_string(reinterpret_cast<std::uintptr_t>(begin));
  if (begin == nullptr) return Status(Code::registration, "cannot register a null pointer", rank);
  if (arena_->offset_of(begin, nbytes) >= 0) return {};
  auto after = entries_.lower_bound(begin);
  if (after != entries_.end() && after->first == begin && after->second.nbytes == nbytes) {
    Entry& known = after->second;
    if (!known.noticed) ++known.count;
    else if (intact(begin, known, true)) known.noticed = false, --n_noticed_;
    else forget(after);
    if (entries_.contains(begin)) return {};
    after = entries_.lower_bound(begin);
  }
  // What was registered without being asked gives way.
  if (std::erase_if(entries_, [&](auto& item) {
        const auto& [first, old] = item;
        const bool touches = old.noticed && first < begin + nbytes && begin < first + old.nbytes;
        if (!touches) return false;
        if (!intact(first, old) || !restore(old).ok()) kept_.push_back(old);
        group_->remove_alias(first);
        --n_noticed_;
        return true;
      }) > 0)
    after = entries_.lower_bound(begin);
  const bool hits_after = after != entries_.end() && after->first < begin + nbytes;
  const bool hits_before = after != entries_.begin() && std::prev(after)->first + std::prev(after)->second.nbytes > begin;
  if (hits_after || hits_before)
    return Status(Code::registration, what + " of rank " + std::to_string(rank) + " overlap memory that is registered already; "
                                          "register the whole array once, its parts are registered with it", rank);
  Entry entry;
  entry.nbytes = nbytes;
  entry.pages = page_up(begin);
  std::byte* const end = page_down(begin + nbytes);
  if (end <= entry.pages) {
    entry.pages = nullptr;
    entries_.emplace(begin, std::move(entry));
    return {};
  }
  entry.pages_bytes = static_cast<std::uint64_t>(end - entry.pages);
  // A page before and after: the range's own bytes around its pages then have offsets inside the block too. Huge pages of the arena
  // can be huge pages here too if both begin at the same place within one.
  const std::uint64_t room = entry.pages_bytes >= kHugeFrom ? kHugePage : kPage;
  Result<std::shared_ptr<Block>> block = arena_->allocate(entry.pages_bytes + kPage + room, Arena::Pages::later);
  if (!block.ok()) return block.status();
  entry.block = std::move(block).value();
  entry.offset = entry.block->offset() + kPage;
  entry.offset += (reinterpret_cast<std::uintptr_t>(entry.pages) - file_offset(entry)) % room;
  arena_->make_huge(entry.offset, entry.pages_bytes);
  fill(arena_->base() + entry.offset, segment_->fd(), file_offset(entry), entry.pages, entry.pages_bytes);
  if (::mmap(entry.pages, entry.pages_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, segment_->fd(),
             static_cast<off_t>(file_offset(entry))) == MAP_FAILED)
    return Status(Code::registration, "cannot register " + what + " of rank " + std::to_string(rank) + ": " + std::strerror(errno) +
                                          "; is it memory that this process may write?", rank);
  group_->add_alias({begin, begin + nbytes, entry.pages, entry.pages + entry.pages_bytes, entry.offset});
  entries_.emplace(begin, std::move(entry));
  return {};
}

Status Registry::restore(const Entry& entry) const {
  if (entry.pages == nullptr || make_private(entry.pages, entry.pages + entry.pages_bytes)) return {};
  return Status(Code::registration, "cannot give " + std::to_string(entry.pages_bytes) + " registered bytes of rank " +
                                        std::to_string(segment_->rank()) + " a private copy: " + std::strerror(errno),
                segment_->rank());
}

Status Registry::remove(void* data) {
  const std::lock_guard lock(registries_mutex());
  const auto found = entries_.find(static_cast<std::byte*>(data));
  if (found == entries_.end()) {
    if (arena_->offset_of(data, 0) >= 0) return {};
    return Status(Code::registration, "memory at " + std::to_string(reinterpret_cast<std::uintptr_t>(data)) + " of rank " +
                                          std::to_string(segment_->rank()) + " is not registered; pass what was registered",
                  segment_->rank());
  }
  if (found->second.noticed && !intact(found->first, found->second)) {
    forget(found);
    return {};
  }
  if (--found->second.count > 0) return {};
  if (Status status = restore(found->second); !status.ok()) {
    ++found->second.count;
    return status;
  }
  if (found->second.noticed) --n_noticed_;
  group_->remove_alias(data);
  entries_.erase(found);
  return {};
}

std::int64_t Registry::offset_of(const void* data, std::uint64_t nbytes) const {
  const std::lock_guard lock(registries_mutex());
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  const auto after = entries_.upper_bound(begin);
  if (after == entries_.begin()) return -1;
  const Entry& entry = std::prev(after)->second;
  if (entry.noticed || entry.pages == nullptr || begin < entry.pages) return -1;
  const auto at = static_cast<std::uint64_t>(begin - entry.pages);
  if (at > entry.pages_bytes || nbytes > entry.pages_bytes - at) return -1;
  return static_cast<std::int64_t>(entry.offset + at);
}

bool Registry::intact(const std::byte* data, const Entry& entry, bool live) const {
  // A block goes as a whole, or, at the top of the heap, from its end.
  const std::byte* const last = entry.pages + entry.pages_bytes - kPage;
  if (can_ask_of_one_address()) return shows(last, file_, file_offset(entry) + entry.pages_bytes - kPage);
  // What else may be shared at these addresses by now is no block.
  return is_still_a_block(data, entry.nbytes) && is_shared_page(last, live);
}

bool Registry::still_there(const std::byte* data, const Entry& entry) const {
  if (entry.pages == nullptr) return true;
  if (entry.noticed) return intact(data, entry);
  // Whoever asked for it should have kept it, yet what collects garbage frees in an order of its own.
  const std::uint64_t offset = file_offset(entry);
  return is_mapped_at(entry.pages, segment_->fd(), offset, entry.pages_bytes);
}

Registry::Entries::iterator Registry::forget(Entries::iterator found) {
  if (Seen& watched = seen(found->first); watched.data == found->first) {
    watched.times = 0;
    if (found->second.uses < kPaysFrom) watched.wanted = std::min(watched.wanted * kLonger, kMostTimes);
  }
  group_->remove_alias(found->first);
  --n_noticed_;
  if (still_mapped(found->second)) kept_.push_back(std::move(found->second));
  return entries_.erase(found);
}

bool Registry::still_mapped(const Entry& entry) const {
  return is_mapped(segment_->fd(), segment_->header().arena_offset + entry.block->offset(), entry.block->size());
}

Registry::Entries::iterator Registry::forget_the_gone(Entries::iterator from, const std::byte* end) {
  const auto is_gone = [this](const auto& item) { return item.second.noticed && !intact(item.first, item.second); };
  const auto begins_before = [&](Entries::iterator at) { return at != entries_.end() && (end == nullptr || at->first < end); };
  while (begins_before(from) && is_gone(*from)) from = forget(from);
  for (auto at = from; begins_before(at);) at = is_gone(*at) ? forget(at) : std::next(at);
  return from;
}

void Registry::forget_the_gone() {
  std::erase_if(kept_, [this](const Entry& entry) { return !still_mapped(entry); });
  forget_the_gone(entries_.begin(), nullptr);
}

Registry::Seen& Registry::seen(const void* data) {
  const auto hash = reinterpret_cast<std::uintptr_t>(data) / 64 * 0x9e3779b97f4a7c15u;
  return seen_[(hash >> 32) % kSeen];
}

bool Registry::worth_it(const void* data, std::uint64_t nbytes) {
  const bool whole = reinterpret_cast<std::uintptr_t>(data) % kPage == 0 && nbytes % kPage == 0;
  return nbytes >= (whole && can_ask_of_one_address() ? kLeastOfWholePages : kLeastBytes);
}

bool Registry::seen_before(const void* data, std::uint64_t nbytes) {
  Seen& found = seen(data);
  if (found.data != data || found.nbytes != nbytes) found = {data, nbytes, 0, times_};
  // Asked when it has come a few times, and then rarely: a buffer that may not be registered costs little.
  const int times = ++found.times;
  return times == found.wanted || times % kMostTimes == 0;
}

void Registry::await_and_notice(const node::Call& call, int place, int n) {
  while (!group_->take()) ::sched_yield();
  notice(call, place, n);
}

void Registry::notice(const node::Call& call, int place, int n) {
  if (!automatic_ || node::Group::is_small(call.collective, call.block_bytes, n) || group_->by_cells(call)) return;
  const node::Blocks blocks = node::blocks_of(call.collective, place, n, call.root, call.peer);
  const std::uint64_t input_bytes = blocks.input * call.block_bytes;
  const std::uint64_t output_bytes = blocks.output * call.block_bytes;
  const std::byte* const output = call.output;
  const bool in_output = call.input >= output && call.input + input_bytes <= output + output_bytes;
  const bool in_input = output >= call.input && output + output_bytes <= call.input + input_bytes;
  // In place, the larger buffer is the block that holds both.
  if (input_bytes > 0 && (output_bytes == 0 || !in_output)) notice(call.input, input_bytes);
  if (output_bytes > 0 && (input_bytes == 0 || in_output || !in_input)) notice(output, output_bytes);
}

void Registry::notice(const void* data, std::uint64_t nbytes) {
  if (!automatic_ || data == nullptr || arena_->offset_of(data, nbytes) >= 0) return;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  const std::lock_guard lock(registries_mutex());
  auto at = entries_.upper_bound(begin);
  if (at != entries_.begin() && begin < std::prev(at)->first + std::prev(at)->second.nbytes) --at;
  if (at != entries_.end() && at->first <= begin && begin + nbytes <= at->first + at->second.nbytes) {
    if (!at->second.noticed || intact(at->first, at->second, begin == at->first)) {
      ++at->second.uses;
      return;
    }
    at = forget(at);
  }
  // Parts of it are looked up by themselves, as an input that lies in its output is: none may be found where a smaller one was.
  at = forget_the_gone(at, begin + nbytes);
  if (!worth_it(data, nbytes) || !can_tell_pages() || !seen_before(data, nbytes)) return;
  // What was noticed where this one lies now was smaller, or is gone.
  while (at != entries_.end() && at->first < begin + nbytes) {
    if (!at->second.noticed) return;
    at = forget(at);
  }
  forget_the_gone();
  if (n_noticed_ >= kMostNoticed || pages_may_be_pinned() || !is_plain_block(data, nbytes, file_) || !insert(begin, nbytes).ok()) return;
  Entry& entry = entries_.at(begin);
  entry.noticed = entry.pages != nullptr;
  if (entry.noticed) ++n_noticed_;
  else entries_.erase(begin);
}

std::uint64_t Registry::registered_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [data, entry] : entries_) total += entry.nbytes;
  return total;
}

}  // namespace ccl_lab

// Registered memory of one NIC; see adapter.hpp.
#include "transport/verbs/adapter.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace ccl_lab {

// ---- staging

Stage::~Stage() {
  memory_.reset();
  if (base_ != nullptr) ::munmap(base_, kBytes);
}

Status Stage::open(verbs::Device& device) {
  // Shared, so that a fork of this process does not move the pages from under the NIC.
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Code::registration, std::string("no memory to stage in: ") + std::strerror(errno));
  base_ = static_cast<std::byte*>(memory);
  Result<std::unique_ptr<verbs::Memory>> registered = device.register_memory(base_, kBytes);
  if (!registered.ok()) return registered.status();
  memory_ = std::move(registered).value();
  return {};
}

std::byte* Stage::take(std::uint64_t nbytes, std::uint64_t& ticket) {
  nbytes = std::max<std::uint64_t>((nbytes + 63) / 64 * 64, 64);
  const std::uint64_t at = end_ % kBytes;
  const std::uint64_t skipped = at + nbytes > kBytes ? kBytes - at : 0;
  if (end_ + skipped + nbytes - begin_ > kBytes) return nullptr;
  if (skipped > 0) pieces_.push({skipped, true});
  end_ += skipped;
  std::byte* const piece = base_ + end_ % kBytes;
  end_ += nbytes;
  ticket = first_ + pieces_.size();
  pieces_.push({nbytes, false});
  return piece;
}

void Stage::give_back(std::uint64_t ticket) {
  pieces_[static_cast<std::size_t>(ticket - first_)].free = true;
  for (; !pieces_.empty() && pieces_.front().free; pieces_.pop()) {
    begin_ += pieces_.front().nbytes;
    ++first_;
  }
}

// ---- registering beside

class Registrar {
 public:
  struct Job {
    RegionKey key = 0;
    std::uint64_t serial = 0;
    std::uint32_t index = 0;
    std::byte* base = nullptr;
    std::uint64_t size = 0;
    Result<std::unique_ptr<verbs::Memory>> result = Status(Code::internal, "not registered yet");
  };

  explicit Registrar(verbs::Device& device) : device_(device), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { work(); }) {}
  ~Registrar() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wanted_.notify_one();
    thread_.join();
    if (fd_ >= 0) ::close(fd_);
  }

  int fd() const { return fd_; }
  void ask(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wanted_.notify_one();
  }
  std::vector<Job> take() {
    std::uint64_t told = 0;
    const ssize_t ignored = ::read(fd_, &told, sizeof told);
    (void)ignored;  // nothing there: then nothing is done either
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
  // Waits for the job that is being done, and forgets those of the region that are not begun.
  void forget(std::uint64_t serial) {
    std::unique_lock lock(mutex_);
    std::erase_if(jobs_, [&](const Job& job) { return job.serial == serial; });
    idle_.wait(lock, [&] { return busy_ != serial; });
    std::erase_if(done_, [&](const Job& job) { return job.serial == serial; });
  }

 private:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [this] { return ended_ || !jobs_.empty(); });
      if (ended_) return;
      Job job = std::move(jobs_.front());
      jobs_.erase(jobs_.begin());
      busy_ = job.serial;
      lock.unlock();
      job.result = device_.register_memory(job.base, job.size);
      lock.lock();
      busy_ = kNobody;
      done_.push_back(std::move(job));
      idle_.notify_all();
      const std::uint64_t one = 1;
      const ssize_t ignored = ::write(fd_, &one, sizeof one);
      (void)ignored;  // fails only where it is readable already
    }
  }

  verbs::Device& device_;
  int fd_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable idle_;
  std::vector<Job> jobs_;
  std::vector<Job> done_;
  std::uint64_t busy_ = kNobody;
  bool ended_ = false;
  std::thread thread_;
};

// ---- the NIC

Result<std::unique_ptr<Adapter>> Adapter::open(verbs::Driver& driver, const verbs::Nic& nic, Registration mode, std::uint64_t chunk_bytes) {
  Result<std::unique_ptr<verbs::Device>> device = driver.open(nic.device);
  if (!device.ok()) return device.status();
  std::unique_ptr<Adapter> adapter(new Adapter());
  adapter->device_ = std::move(device).value();
  adapter->nic_ = nic;
  adapter->mode_ = mode;
  adapter->chunk_bytes_ = chunk_bytes;
  if (const Status status = adapter->look_up_gid(); !status.ok()) return status;
  if (const Status status = adapter->stage_.open(*adapter->device_); !status.ok()) return status;
  if (mode == Registration::background) adapter->registrar_ = std::make_unique<Registrar>(*adapter->device_);
  return adapter;
}

Adapter::~Adapter() = default;

Status Adapter::look_up_gid() {
  const Result<verbs::Gid> gid = device_->gid(nic_.port, nic_.gid_index);
  if (!gid.ok()) return gid.status();
  gid_ = gid.value();
  return {};
}

std::uint64_t Adapter::size_of(const Owned& region, std::uint32_t index) {
  return std::min(region.chunk_bytes, region.size - index * region.chunk_bytes);
}

Adapter::Chunk& Adapter::touch(Owned& region, std::uint32_t index, bool may_wait) {
  Chunk& chunk = region.chunks[index];
  if (chunk.state != ChunkState::absent) return chunk;
  std::byte* const base = region.base + index * region.chunk_bytes;
  if (registrar_ != nullptr && may_wait) {
    chunk.state = ChunkState::pending;
    registrar_->ask({region.key, region.serial, index, base, size_of(region, index)});
    return chunk;
  }
  Result<std::unique_ptr<verbs::Memory>> memory = device_->register_memory(base, size_of(region, index));
  chunk.state = memory.ok() ? ChunkState::ready : ChunkState::failed;
  if (memory.ok()) chunk.memory = std::move(memory).value();
  else chunk.why = memory.status();
  return chunk;
}

Status Adapter::add_region(RegionKey key, std::byte* base, std::uint64_t size) {
  regions_.push_back({key, next_serial_++, base, size, chunk_bytes_, {}});
  if (mode_ != Registration::eager || size == 0) return {};
  for (std::uint64_t index = 0; index * chunk_bytes_ < size; ++index) {
    const Chunk& chunk = touch(regions_.back(), static_cast<std::uint32_t>(index), false);
    if (chunk.state == ChunkState::failed) return chunk.why;
  }
  return {};
}

Status Adapter::add_device_region(RegionKey key, std::byte* base, std::uint64_t size, int fd) {
  Result<std::unique_ptr<verbs::Memory>> memory = device_->register_dma_buf(fd, 0, size, reinterpret_cast<std::uintptr_t>(base));
  if (!memory.ok()) return memory.status();
  regions_.push_back({key, next_serial_++, base, size, size, {}});
  Chunk& whole = regions_.back().chunks[0];
  whole.state = ChunkState::ready;
  whole.memory = std::move(memory).value();
  return {};
}

void Adapter::remove_region(RegionKey key) {
  std::erase_if(regions_, [&](const Owned& region) {
    if (region.key == key && registrar_ != nullptr) registrar_->forget(region.serial);
    return region.key == key;
  });
}

std::vector<RegionCard> Adapter::regions() const {
  std::vector<RegionCard> cards;
  for (const Owned& region : regions_)
    cards.push_back({region.key, region.size, reinterpret_cast<std::uintptr_t>(region.base), region.chunk_bytes});
  return cards;
}

Adapter::Place Adapter::place(const std::byte* address) {
  for (Owned& region : regions_) {
    if (of_device(region.key) || address < region.base || address >= region.base + region.size) continue;
    const auto offset = static_cast<std::uint64_t>(address - region.base);
    const auto index = static_cast<std::uint32_t>(offset / region.chunk_bytes);
    const std::uint64_t run = size_of(region, index) - offset % region.chunk_bytes;
    if (mode_ == Registration::off) return {nullptr, run};
    const Chunk& chunk = touch(region, index, true);
    return {chunk.state == ChunkState::ready ? chunk.memory.get() : nullptr, run};
  }
  return {};
}

Adapter::Place Adapter::place(RegionKey key, const std::byte* address) {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Owned& region) { return region.key == key; });
  if (found == regions_.end() || address < found->base || address >= found->base + found->size) return {};
  return {found->chunks.at(0).memory.get(), found->size - static_cast<std::uint64_t>(address - found->base)};
}

ChunkState Adapter::chunk(RegionKey key, std::uint32_t index, const verbs::Memory*& memory, Status& why) {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Owned& region) { return region.key == key; });
  if (found == regions_.end() || std::uint64_t{index} * found->chunk_bytes >= found->size) {
    why = Status(Code::bounds, "chunk " + std::to_string(index) + " of region " + std::to_string(key) + " is asked for, and there is none");
    return ChunkState::failed;
  }
  const Chunk& chunk = touch(*found, index, true);
  memory = chunk.memory.get();
  why = chunk.why;
  return chunk.state;
}

std::size_t Adapter::n_registered() const {
  std::size_t n = 0;
  for (const Owned& region : regions_)
    n += static_cast<std::size_t>(std::count_if(region.chunks.begin(), region.chunks.end(),
                                                [](const auto& item) { return item.second.state == ChunkState::ready; }));
  return n;
}

bool Adapter::collect() {
  if (registrar_ == nullptr) return false;
  std::vector<Registrar::Job> done = registrar_->take();
  for (Registrar::Job& job : done) {
    const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Owned& each) { return each.serial == job.serial; });
    if (region == regions_.end()) continue;
    Chunk& chunk = region->chunks[job.index];
    chunk.state = job.result.ok() ? ChunkState::ready : ChunkState::failed;
    if (job.result.ok()) chunk.memory = std::move(job.result).value();
    else chunk.why = job.result.status();
  }
  return !done.empty();
}

int Adapter::news_fd() const { return registrar_ == nullptr ? -1 : registrar_->fd(); }

}  // namespace ccl_lab

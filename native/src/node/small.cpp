// Small messages: every rank shows its whole contribution on its board, and whoever needs it reads it there.
//
//   owner                                reader
//     payload -> line, short or slot
//     header.tag = tag (release)           header.tag == tag (acquire)
//                                          output = f(payloads)
//                                          done = number (release)
//
// One line a rank up to kInlineBytes: the message travels with its own flag. No lock, no system call, one cache miss.
#include "node/core.hpp"
#include "reduce/reduce.hpp"

namespace ccl_lab::node {

namespace {

struct Senders {
  int first;
  int last;  // exclusive
};

// The ranks whose headers this one waits for.
Senders senders_of(const Core& core) {
  switch (core.call.collective) {
    case Collective::broadcast:
    case Collective::scatter:
      return core.place == core.call.root ? Senders{0, 0} : Senders{core.call.root, core.call.root + 1};
    case Collective::reduce:
    case Collective::gather:
      return core.place == core.call.root ? Senders{0, core.n} : Senders{0, 0};
    default: return {0, core.n};
  }
}

// Where a message goes, by its size; longer rings for smaller ones.
enum class Form : std::uint8_t { line, brief, slot };

Form form_of(std::uint64_t nbytes) {
  return nbytes <= kInlineBytes ? Form::line : nbytes <= kShortBytes ? Form::brief : Form::slot;
}

std::uint64_t depth_of(Form form, int n) {
  return form == Form::line ? headers_of(n) : form == Form::brief ? shorts_of(n) : kSlots;
}

const std::byte* payload_of(const Core& core, int place, Form form) {
  return form == Form::line ? core.header(place).data : form == Form::brief ? core.short_slot(place) : core.slot(place);
}

// The own payload of this collective, for all to see. Stores of whole lines, which the library's copy of so few bytes does not make:
// 0.83 times the time of a broadcast.
void show_payload(const Core& core, Form form, std::uint64_t nbytes) {
  if (form == Form::slot) {
    std::memcpy(core.slot(core.place), core.call.input, nbytes);
    return;
  }
  std::byte* const to[] = {core.short_slot(core.place)};
  copy_to(to, 1, core.call.input, nbytes);
}

// Asks for the lines of a payload that is written some calls from now: whoever read them last has them, and one after the other they
// come back too slowly. Two calls before was as good as six, and better than one; 1 KiB to a core far away takes 0.18 us, not 0.31.
void ask_for_lines(const Core& core, std::uint64_t nbytes) {
  constexpr std::uint64_t kBefore = 2;
  constexpr std::uint64_t kAtOnce = 4;
  static_assert(kShortBytes % (kAtOnce * kLineBytes) == 0);
  const std::byte* const next = core.own->shorts[(core.number + kBefore) & (shorts_of(core.n) - 1)];
  for (std::uint64_t at = 0; at < nbytes; at += kAtOnce * kLineBytes)
    for (std::uint64_t line = 0; line < kAtOnce; ++line) __builtin_prefetch(next + at + line * kLineBytes, 1);
}

void reduce_payloads(const Core& core, Form form, std::uint64_t at) {
  constexpr int kOnStack = 64;
  const std::byte* near[kOnStack];
  std::vector<const std::byte*> far;
  const std::byte** sources = near;
  if (core.n > kOnStack) {
    far.resize(static_cast<std::size_t>(core.n));
    sources = far.data();
  }
  for (int j = 0; j < core.n; ++j) sources[j] = payload_of(core, j, form) + at;
  const Call& call = core.call;
  std::byte* out[] = {call.output};
  reduce_to(call.dtype, call.redop, out, 1, sources, static_cast<std::size_t>(core.n),
            call.block_bytes / itemsize(call.dtype), call.redop == RedOp::avg ? core.n : 1);
}

void deliver(const Core& core, Form form) {
  const Call& call = core.call;
  const std::uint64_t block = call.block_bytes;
  const auto place = static_cast<std::uint64_t>(core.place);
  switch (call.collective) {
    case Collective::all_reduce: return reduce_payloads(core, form, 0);
    case Collective::reduce:
      if (core.place == call.root) reduce_payloads(core, form, 0);
      return;
    case Collective::reduce_scatter: return reduce_payloads(core, form, place * block);
    case Collective::broadcast:
      if (core.place == call.root) {
        if (call.input != call.output) std::memcpy(call.output, call.input, block);
      } else {
        std::memcpy(call.output, payload_of(core, call.root, form), block);
      }
      return;
    case Collective::scatter: 
      std::memcpy(call.output, payload_of(core, call.root, form) + place * block, block);
      return;
    case Collective::gather:
      if (core.place != call.root) return;
      [[fallthrough]];
    case Collective::all_gather:
      for (int j = 0; j < core.n; ++j)
        std::memcpy(call.output + static_cast<std::uint64_t>(j) * block, payload_of(core, j, form), block);
      return;
    case Collective::all_to_all:
      for (int j = 0; j < core.n; ++j)
        std::memcpy(call.output + static_cast<std::uint64_t>(j) * block,
                    payload_of(core, j, form) + place * block, block);
      return;
    default: return;
  }
}

}  // namespace

Turn step_small(Core& core) {
  const Call& call = core.call;
  // The same for all ranks, whether they contribute or not.
  const std::uint64_t nbytes = contribution_bytes(call.collective, call.block_bytes, core.n);
  const Form form = form_of(nbytes);
  const Senders senders = senders_of(core);
  if (core.stage == 0) {
    if (!core.room(depth_of(form, core.n))) return core.may_wait();
    const bool sends = core.blocks.input > 0 || call.collective == Collective::barrier;
    if (sends && form != Form::line) show_payload(core, form, nbytes);
    if (sends) core.publish(call.input, form == Form::line ? nbytes : 0);
    if (sends && form == Form::brief) ask_for_lines(core, nbytes);
    core.stage = 1;
    core.seen = senders.first;
  }
  for (; core.seen < senders.last; ++core.seen)
    if (core.seen != core.place && !core.arrived(core.seen)) return core.may_wait();
  if (nbytes > 0) deliver(core, form);
  core.traffic.read_bytes += nbytes * static_cast<std::uint64_t>(senders.last - senders.first);
  core.traffic.written_bytes += core.blocks.output * call.block_bytes;
  return core.finish(senders.first == 0 && senders.last == core.n);
}

}  // namespace ccl_lab::node

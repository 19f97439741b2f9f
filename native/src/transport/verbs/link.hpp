// One pair of NICs over verbs: queue pairs, what is spread over them, and the order of what comes.
//
// Is: puts and gets cut into segments that go to whichever queue pair has room (spread.hpp), and the receiving half of the
//     same. Owns the queue pairs, their completion queue and the socket beside them.
// Is not: a chooser among NICs, nor what repairs a lost path.
//
//   socket ─► cards both ways ─► queue pairs connected ─► ready both ways ─► up
//
//   post ─► item ─► segment: number, queue pair with room, keys of both memories ─► chain of the queue pair ─► one doorbell
//             its last one: the notice first, written to the peer's slot of that number, then the bytes, with immediate
//   completion of the NIC   room again, staged bytes free; an unconfirmed item is done with its last
//   ack of the peer         receives and slots again; confirmed items are done with, in order
//
//   immediate ─► number ─► in order (InOrder) ─► slot of that number read ─► signal raised │ receiver told ─► ack owed
//
// Invariants
//  - A queue pair of data has at most inflight_max segments (of the spread of the put, where a path has two), and never more than the peer has receives for: its NIC is never
//    without. Acknowledgements, on the one for control, may have to wait for a peer whose software is slow.
//  - Bytes before their notice before their immediate: they go over one queue pair, which keeps the order; and a number
//    fires only when every lower one has arrived, whatever queue pairs they took.
//  - Memory of a GPU is registered before it is named: it is neither staged nor sent inline, which the host would do. A region of a GPU
//    that the peer has named and not said yet is asked for: what it says beside the data comes in order.
//  - The first error ends the link, and is the one that is told. What had arrived before is received.
//  - Of a chain only the last request tells its success: it tells that of all before it.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/signals.hpp"
#include "trace/ring.hpp"
#include "transport/items.hpp"
#include "transport/queue.hpp"
#include "transport/regions.hpp"
#include "transport/segment_order.hpp"
#include "transport/shaper.hpp"
#include "transport/signal_order.hpp"
#include "transport/transport.hpp"
#include "transport/verbs/adapter.hpp"
#include "transport/verbs/aside.hpp"
#include "transport/verbs/spread.hpp"

namespace ccl_lab {

// What the links of one rank share.
struct VerbsContext {
  int rank = -1;
  std::uint16_t epoch = 0;
  SignalTable signals;
  SpanWriter* trace = nullptr;
  Receiver* receiver = nullptr;
  std::uint32_t first_number = 0;  // of segments and signals
  std::uint8_t timeout = 16;       // of a packet, see verbs::Connect
  std::uint8_t retries = 6;
};

// What the last segment of a put says, in the slot of its number: 64 bytes, written by the sender's NIC.
struct NoticeSlot {
  std::uint32_t number = 0;    // of the segment: says that the slot is its
  std::uint32_t flags = 0;     // kNotice, ...
  std::uint32_t lane = 0;
  std::uint32_t notice = 0;
  std::int32_t signal = -1;
  std::uint32_t sequence = 0;
  std::uint32_t ack = 0;       // of the other way, as in an immediate, but whole
  std::uint32_t coll_id = 0;
  std::int32_t op_id = -1;
  std::uint32_t reserved = 0;
  std::uint64_t plain_bytes = 0;  // that came without an immediate
  std::uint32_t spare[4] = {};

  static constexpr std::uint32_t kNotice = 1;  // else a signal
  static constexpr std::uint32_t kUrgent = 2;  // the sender waits
  static constexpr std::uint32_t kBare = 4;    // the immediate came with this slot, not with bytes
};
static_assert(sizeof(NoticeSlot) == 64);

class VerbsLink {
 public:
  static constexpr std::uint64_t kAckBytes = 512 * 1024;
  static constexpr std::uint32_t kAckSegments = 32;
  static constexpr std::int64_t kAckDelayNs = 200'000;

  // Takes over `fd`. `order`: of the signals of this peer, over all its links.
  VerbsLink(const VerbsContext& context, const Path& name, int fd, Adapter& adapter, Shaper shaper, SignalOrder& order,
            const PathSpread& spread);
  ~VerbsLink();
  VerbsLink(const VerbsLink&) = delete;
  VerbsLink& operator=(const VerbsLink&) = delete;

  // Makes the queue pairs and says the card.
  Status open();
  const Path& name() const { return name_; }
  Adapter& adapter() const { return adapter_; }
  const Shaper& shaper() const { return shaper_; }
  int fd() const { return aside_.fd(); }
  bool up() const { return state_ == State::up; }
  bool owns(std::uint32_t qpn) const;
  std::string text() const;

  // bounds where it is known already that the peer's memory is not there.
  Status check(const char* what, Remote at, std::uint64_t nbytes, const Tag& tag) const;
  void post(const Put& put, std::uint32_t sequence);
  void post(const Get& get);
  void tell_region(const RegionCard& region);
  void tell_gone(RegionKey key);

  // Takes completions, sends what has room. How many things were done.
  int serve(std::int64_t now_ns, std::vector<Completion>& completions);
  // What came beside the data.
  void hear();
  // The next completion wakes; nothing where that is asked for already.
  void arm();
  void armed_no_more() { armed_ = false; }
  // Or it will not be: it is over.
  bool armed() const { return armed_ || !ended_.ok() || retired_; }
  bool unsent() const { return !puts_.empty() || !sprayed_.empty(); }
  // Nothing is to be sent, nothing is with the NIC, and no acknowledgement is owed.
  bool quiet() const;
  void wake(std::int64_t& wake_ns) const;

  // Not ok: it is over. The first reason counts.
  const Status& ended() const { return ended_; }
  void end(Status why);
  // A queue pair goes to the error state, as a fault that is injected does it.
  void sever() { pairs_[turn_broken_++ % pairs_.size()].pair->fail(); }
  // Nothing lands or leaves any more, from now on.
  void retire();
  bool retired() const { return retired_; }
  // Completes all that is under way with `status`.
  void fail(const Status& status, std::vector<Completion>& completions);

 private:
  enum class State : std::uint8_t { greeting, connecting, up };
  static constexpr std::uint32_t kReceiveBit = 1u << 31;  // of the upper half of an id, beside the queue pair
  static constexpr std::uint32_t kNoItem = ~std::uint32_t{0};
  static constexpr std::uint64_t kNoTicket = ~std::uint64_t{0};
  static constexpr std::size_t kChain = 16;  // flights before the doorbell is rung
  static constexpr int kInlineBytes = 220;

  struct Item {
    bool live = false;
    bool is_get = false;
    bool confirmed = false;
    bool urgent = false;
    bool spray = false;
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;
    RegionKey local_key = 0;    // of a region of a GPU that it lies in; 0: memory of the host
    std::uint64_t nbytes = 0;
    std::uint64_t cut = 0;      // bytes of it that are in segments
    std::uint32_t open = 0;     // segments that the NIC is not done with
    std::uint32_t number = 0;   // of its last segment
    Remote remote;
    Notice notice;              // or only a signal, and its number
    std::uint64_t cookie = 0;
    Tag tag;

    bool tells() const { return confirmed || notice.signal >= 0; }
  };
  // A segment with the NIC.
  struct Flight {
    std::uint32_t item = kNoItem;
    bool large = false;              // of a put of several segments
    std::uint64_t nbytes = 0;
    std::uint64_t ticket = kNoTicket;     // of staged bytes
    std::byte* copy_to = nullptr;    // of a get: where they go from there
    const std::byte* staged = nullptr;
    std::int64_t begin_ns = 0;
  };
  struct Pair {
    std::unique_ptr<verbs::QueuePair> pair;
    Queue<Flight> flights;
    std::uint32_t posted = 0;        // flights, ever
    std::uint32_t done = 0;
    std::uint32_t unacked = 0;       // receives of the peer that are used
    int owed = 0;                    // receives to post again
    std::vector<verbs::Send> chain;
    std::size_t n_chained = 0;       // flights in it
    std::array<NoticeSlot, kChain> slots;  // inline: read when the doorbell is rung
  };
  struct RemoteRegion {
    RegionCard card;
    std::unordered_map<std::uint32_t, std::uint32_t> keys;  // by chunk
    std::unordered_set<std::uint32_t> asked;
  };
  struct Request {
    RegionKey key = 0;
    std::uint32_t first = 0;
    std::uint32_t n = 0;
  };
  // Where one segment comes from and goes to.
  struct Ends {
    std::uint64_t nbytes = 0;
    std::uint32_t rkey = 0;
    std::uint64_t remote = 0;
    std::byte* local = nullptr;
    std::uint32_t lkey = 0;
    bool inlined = false;
    std::uint64_t ticket = kNoTicket;
  };
  struct Unconfirmed {
    std::uint32_t number = 0;
    std::uint32_t item = 0;
  };

  // Connecting (link.cpp).
  Status make_pairs();
  Status take_card(const Card& card);
  Status connect_pairs(const Card& card);
  Status take(const AsideMessage& message);
  Status answer(const Request& request, bool& pending);
  void answer_pending();
  void flush_aside();
  Status explain(const verbs::Wc& wc, const Flight* flight) const;

  // Sending (sending.cpp).
  std::uint32_t add(const Item& item);
  Pair& control() { return pairs_.back(); }
  int n_data() const { return static_cast<int>(pairs_.size()) - 1; }
  const Spread& spread_of(const Item& item) const { return item.tag.traffic == Traffic::all_to_all ? spread_.all_to_all : spread_.usual; }
  bool room(const Pair& pair, const Item& item, bool numbered) const;
  int next_pair(const Item& item, bool numbered);
  void pump(std::int64_t now_ns, std::vector<Completion>& completions);
  bool cut_put(std::int64_t now_ns, std::vector<Completion>& completions);
  bool cut_get(std::int64_t now_ns, std::vector<Completion>& completions);
  bool refuse_unreachable(Queue<std::uint32_t>& queue, std::vector<Completion>& completions);
  bool find_remote(const Item& item, Ends& ends);
  bool find_local(const Item& item, int inline_bytes, Ends& ends);
  bool find_on_device(const Item& item, Ends& ends);
  void put_segment(Pair& pair, std::uint32_t at, const Ends& ends, bool fast, std::int64_t now_ns);
  void write_slot(Pair& pair, const Item& item, std::uint32_t number, verbs::Send& send);
  void number_segment(std::size_t pair, std::uint32_t at, bool last);
  bool tell_sprayed(std::int64_t now_ns);
  void send_ack(std::int64_t now_ns);
  void ack_said();
  void chain(Pair& pair, std::span<const verbs::Send> sends, const Flight& flight);
  void ring(Pair& pair);
  void item_done(std::uint32_t item, std::vector<Completion>& completions);
  void flight_done(Pair& pair, std::int64_t now_ns, std::vector<Completion>& completions);
  void confirm(std::vector<Completion>& completions);
  Status acked(std::uint32_t number);

  // Receiving (receiving.cpp).
  int take_completions(std::int64_t now_ns, std::vector<Completion>& completions);
  void take_wc(const verbs::Wc& wc, std::int64_t now_ns, std::vector<Completion>& completions);
  Status arrived(std::size_t pair, const verbs::Wc& wc, std::int64_t now_ns);
  Status notified(std::uint32_t number, std::int64_t now_ns);
  void return_receives();
  void record(Track track, std::uint64_t nbytes, const Tag& tag, std::int64_t begin_ns, std::int64_t end_ns) const;
  bool traced() const { return context_.trace != nullptr && context_.trace->enabled(); }

  const VerbsContext& context_;
  const Path name_;
  Adapter& adapter_;
  const Shaper shaper_;
  const PathSpread spread_;
  SignalOrder& order_;
  Aside aside_;
  State state_ = State::greeting;
  bool ready_ = false;                 // said by the peer
  Status ended_;
  bool retired_ = false;
  bool armed_ = false;
  bool posted_ = false;                // something was, since the last pump
  bool starved_ = false;               // no room to stage in: other links of the NIC have it
  std::size_t turn_broken_ = 0;

  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::vector<Pair> pairs_;            // of data, and last the one for control
  std::vector<std::uint32_t> psns_;
  int receives_ = 0;                   // posted on each, here
  std::uint32_t inflight_max_ = 0;
  std::uint32_t peer_receives_ = 0;
  NoticeSlot* slots_ = nullptr;        // kWindow of them: what the peer's notices say
  std::unique_ptr<verbs::Memory> slots_memory_;
  std::uint64_t peer_slots_ = 0;
  std::uint32_t peer_slots_key_ = 0;
  std::map<RegionKey, RemoteRegion> remote_;
  std::unordered_set<RegionKey> unheard_;  // regions of GPUs that were asked for: their READY was faster than what the peer says beside
  std::vector<Request> pending_;       // of the peer, for memory that is being registered

  Items<Item> items_;
  Queue<std::uint32_t> puts_;          // items with bytes that are in no segment yet
  Queue<std::uint32_t> gets_;
  Queue<std::uint32_t> sprayed_;       // items whose bytes are with the NICs, to be told of when they are there
  Turn turn_;
  std::uint32_t n_large_ = 0;          // segments with the NIC, of puts of several
  std::uint32_t number_;               // of the next segment
  std::uint32_t acked_;                // of the next one that the peer has not acknowledged
  Queue<std::uint32_t> unacked_;       // queue pairs of the segments from acked_ on
  Queue<Unconfirmed> unconfirmed_;

  InOrder<bool> landed_;               // whether a notice comes with it
  std::uint64_t landed_bytes_ = 0;     // since the last ack
  std::uint32_t landed_segments_ = 0;
  std::uint64_t message_bytes_ = 0;    // since the last notice
  std::int64_t message_ns_ = 0;
  std::int64_t ack_ns_ = INT64_MAX;    // when an ack is due at the latest
  bool ack_due_ = false;
};

}  // namespace ccl_lab

// Finds out which part of a lost path failed, by probes from three points.
//
// Is: a state machine on messages and time: probes over the path itself (A -> B), from this end's NIC to a third one
//     (A -> C), and from a third one to the peer's NIC (C -> B), where C is on a third node if there is one; then C's rank
//     is asked, out of band, to probe. It also serves such questions of others.
// Is not: a way to repair, or a clock. Answering probes is the business of whoever polls the messenger (Rails does).
//
//     A->B   A->C   C->B    verdict
//     ok     -      -       transient: connect it anew, keep the NIC
//     fail   fail   ok      own NIC, or own cable: what the system says of the port tells them apart
//     fail   ok     fail    the peer's NIC or cable
//     fail   ok     ok      the path between them: both NICs can be used elsewhere
//     else                  undecided: suspect both
//
// Invariants
//  - Every case ends: limit_ns after its begin, or grace_ns later where a third rank has to say what it found.
//  - Messages may be lost, doubled or late: probes and questions are sent again every resend_ns; an answer to a case that has
//    ended changes nothing.
//  - A third rank that says nothing is not a probe that failed: the verdict is then undecided, unless A -> C failed and the
//    port says why.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fault/messenger.hpp"
#include "fault/verdict.hpp"
#include "transport/transport.hpp"

namespace ccl_lab {

struct LocalizerOptions {
  std::int64_t resend_ns = 10'000'000;
  std::int64_t limit_ns = 60'000'000;
  std::int64_t grace_ns = 40'000'000;
};

// A NIC of a rank's node; rank -1: there is none.
struct Spot {
  std::int32_t rank = -1;
  std::uint16_t nic = 0;

  bool operator==(const Spot&) const = default;
};

// The third points: where this end's NIC probes to, and from where the peer's NIC is probed (this rank: by another NIC).
struct Thirds {
  Spot to;
  Spot from;
};

// A NIC of a third node, where there is one, of the same number as the NIC it is joined to; else another NIC of the peer and
// another one here.
Thirds choose_thirds(int rank, const Path& path, std::span<const std::int32_t> node_of, int n_nics);

struct Finding {
  Path path;
  Verdict verdict = Verdict::none;
  std::string evidence;
};

class Localizer {
 public:
  // `messenger` outlives this.
  Localizer(int rank, Messenger& messenger, LocalizerOptions options = {}) : rank_(rank), messenger_(messenger), options_(options) {}

  // Begins a case, unless there is one for this path. `local`: what the system says of this end's NIC.
  void begin(const Path& path, NicState local, const Thirds& thirds, std::uint16_t epoch, std::int64_t now_ns);
  // Takes replies, questions and what others found, and does what is due; the cases that ended since.
  std::vector<Finding> poll(std::span<const Datagram> messages, std::int64_t now_ns);
  // When poll has something to do though no message comes; INT64_MAX: never.
  std::int64_t wake_ns() const;
  bool busy() const { return !cases_.empty() || !errands_.empty(); }
  void reset();

 private:
  enum class Answer : std::uint8_t { pending, ok, failed, unknown };

  // One probe, sent until it is answered or given up; or, where another rank sends it, the question.
  struct Probe {
    Spot from;
    Spot to;
    std::uint64_t token = 0;
    Answer answer = Answer::unknown;
    bool asked = false;            // another rank is to send it
    int tries = 0;
    std::int64_t took_ns = 0;
  };
  struct Case {
    Path path;
    NicState local = NicState::up;
    std::uint16_t epoch = 0;
    std::int64_t began_ns = 0;
    std::int64_t next_ns = 0;
    Probe direct;                  // A -> B
    Probe out;                     // A -> C
    Probe in;                      // C -> B
  };
  // A probe for another rank.
  struct Errand {
    std::int32_t asker = -1;
    std::uint64_t token = 0;       // of the question
    std::uint16_t epoch = 0;
    std::int64_t began_ns = 0;
    std::int64_t next_ns = 0;
    std::int64_t ended_ns = 0;     // 0: not yet; kept for a while, since the question may come again
    Probe probe;
  };

  Probe make(Spot from, Spot to);
  void send(Probe& probe, std::uint16_t epoch);
  void tell(const Errand& errand);
  void take(const Datagram& datagram, std::int64_t now_ns);
  void take_question(const Datagram& datagram, std::int64_t now_ns);
  void work(Case& each, std::int64_t now_ns);
  void work(Errand& each, std::int64_t now_ns);
  std::optional<Verdict> judge(const Case& each, std::int64_t now_ns) const;
  std::string evidence(const Case& each, std::int64_t now_ns) const;
  std::string text_of(const Probe& probe) const;

  const int rank_;
  Messenger& messenger_;
  const LocalizerOptions options_;
  std::vector<Case> cases_;
  std::vector<Errand> errands_;
  std::uint32_t next_token_ = 0;
};

}  // namespace ccl_lab

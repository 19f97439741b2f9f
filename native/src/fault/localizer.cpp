// Probes, questions and verdicts; see localizer.hpp.
#include "fault/localizer.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace ccl_lab {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kLocalizerBit = std::uint64_t{1} << 63;  // tokens of alive messages have it not
constexpr std::size_t kMostErrands = 256;

std::string milliseconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", static_cast<double>(ns) * 1e-6);
  return text;
}

std::string name_of(const Spot& spot) { return "rank " + std::to_string(spot.rank) + " NIC " + std::to_string(spot.nic); }

}  // namespace

Thirds choose_thirds(int rank, const Path& path, std::span<const std::int32_t> node_of, int n_nics) {
  const std::int32_t own = node_of[static_cast<std::size_t>(rank)], peer = node_of[static_cast<std::size_t>(path.peer)];
  for (std::size_t r = 0; r < node_of.size(); ++r)
    if (node_of[r] != own && node_of[r] != peer) {
      const auto third = static_cast<std::int32_t>(r);
      return {{third, path.nic}, {third, path.peer_nic}};
    }
  if (n_nics < 2) return {};
  const auto other = [n_nics](std::uint16_t nic) { return static_cast<std::uint16_t>((nic + 1) % n_nics); };
  return {{path.peer, other(path.peer_nic)}, {rank, other(path.nic)}};
}

Localizer::Probe Localizer::make(Spot from, Spot to) {
  Probe probe;
  probe.from = from;
  probe.to = to;
  if (from.rank < 0 || to.rank < 0) return probe;
  probe.token = kLocalizerBit | static_cast<std::uint64_t>(rank_ & 0x7fffffff) << 32 | ++next_token_;
  probe.answer = Answer::pending;
  probe.asked = from.rank != rank_;
  return probe;
}

void Localizer::begin(const Path& path, NicState local, const Thirds& thirds, std::uint16_t epoch, std::int64_t now_ns) {
  for (const Case& each : cases_)
    if (each.path == path) return;
  const Spot own{rank_, path.nic}, peer{path.peer, path.peer_nic};
  Case fresh;
  fresh.path = path;
  fresh.local = local;
  fresh.epoch = epoch;
  fresh.began_ns = fresh.next_ns = now_ns;
  fresh.direct = make(own, peer);
  fresh.out = make(own, thirds.to);
  fresh.in = make(thirds.from, peer);
  cases_.push_back(std::move(fresh));
}

void Localizer::send(Probe& probe, std::uint16_t epoch) {
  Datagram datagram;
  Message& message = datagram.message;
  message.epoch = epoch;
  message.from = rank_;
  message.token = probe.token;
  if (probe.asked) {
    datagram.peer = probe.from.rank;
    message.kind = MessageKind::ask;
    message.position = std::uint64_t{probe.from.nic} << 16 | probe.to.nic;
    message.received = static_cast<std::uint64_t>(probe.to.rank);
  } else {
    datagram.peer = probe.to.rank;
    datagram.nic = probe.from.nic;
    datagram.peer_nic = probe.to.nic;
    message.kind = MessageKind::probe;
    message.nic = probe.from.nic;
    message.peer_nic = probe.to.nic;
  }
  ++probe.tries;
  messenger_.send(datagram);
}

void Localizer::tell(const Errand& errand) {
  Datagram datagram;
  datagram.peer = errand.asker;
  datagram.message.kind = MessageKind::told;
  datagram.message.epoch = errand.epoch;
  datagram.message.from = rank_;
  datagram.message.token = errand.token;
  datagram.message.position = errand.probe.answer == Answer::ok ? 1 : 0;
  datagram.message.received = static_cast<std::uint64_t>(errand.probe.took_ns);
  messenger_.send(datagram);
}

// ---- messages

void Localizer::take(const Datagram& datagram, std::int64_t now_ns) {
  const Message& message = datagram.message;
  if (message.kind == MessageKind::ask) return take_question(datagram, now_ns);
  const bool reply = message.kind == MessageKind::reply, told = message.kind == MessageKind::told;
  if ((!reply && !told) || (message.token & kLocalizerBit) == 0) return;
  const auto settle = [&](Probe& probe, std::int64_t began_ns) {
    if (probe.answer != Answer::pending || probe.token != message.token || probe.asked != told) return;
    probe.answer = reply || message.position == 1 ? Answer::ok : Answer::failed;
    probe.took_ns = reply ? now_ns - began_ns : static_cast<std::int64_t>(message.received);
  };
  for (Case& each : cases_)
    for (Probe* const probe : {&each.direct, &each.out, &each.in}) settle(*probe, each.began_ns);
  for (Errand& each : errands_) settle(each.probe, each.began_ns);
}

void Localizer::take_question(const Datagram& datagram, std::int64_t now_ns) {
  const Message& message = datagram.message;
  for (const Errand& each : errands_)
    if (each.asker == datagram.peer && each.token == message.token) {
      if (each.ended_ns != 0) tell(each);  // what was found did not arrive
      return;
    }
  if (errands_.size() >= kMostErrands || message.received > 0x7fffffff) return;
  Errand fresh;
  fresh.asker = datagram.peer;
  fresh.token = message.token;
  fresh.epoch = message.epoch;
  fresh.began_ns = fresh.next_ns = now_ns;
  fresh.probe = make({rank_, static_cast<std::uint16_t>(message.position >> 16 & 0xffff)},
                     {static_cast<std::int32_t>(message.received), static_cast<std::uint16_t>(message.position & 0xffff)});
  errands_.push_back(fresh);
}

// ---- time

void Localizer::work(Case& each, std::int64_t now_ns) {
  if (now_ns - each.began_ns >= options_.limit_ns)
    for (Probe* const probe : {&each.direct, &each.out, &each.in})
      if (probe->answer == Answer::pending && (!probe->asked || now_ns - each.began_ns >= options_.limit_ns + options_.grace_ns))
        probe->answer = probe->asked ? Answer::unknown : Answer::failed;
  if (now_ns < each.next_ns) return;
  for (Probe* const probe : {&each.direct, &each.out, &each.in})
    if (probe->answer == Answer::pending) send(*probe, each.epoch);
  each.next_ns = std::min(now_ns + options_.resend_ns, now_ns < each.began_ns + options_.limit_ns ? each.began_ns + options_.limit_ns
                                                                                             : each.began_ns + options_.limit_ns + options_.grace_ns);
}

void Localizer::work(Errand& each, std::int64_t now_ns) {
  if (each.ended_ns != 0) return;
  if (each.probe.answer == Answer::pending && now_ns - each.began_ns >= options_.limit_ns) each.probe.answer = Answer::failed;
  if (each.probe.answer != Answer::pending) {
    each.ended_ns = now_ns;
    return tell(each);
  }
  if (now_ns < each.next_ns) return;
  send(each.probe, each.epoch);
  each.next_ns = std::min(now_ns + options_.resend_ns, each.began_ns + options_.limit_ns);
}

std::optional<Verdict> Localizer::judge(const Case& each, std::int64_t) const {
  // A port that is down needs no probe.
  if (each.local == NicState::down) return Verdict::own_nic;
  if (each.local == NicState::unplugged) return Verdict::own_cable;
  if (each.direct.answer == Answer::ok) return Verdict::transient;
  const Answer out = each.out.answer, in = each.in.answer;
  if (each.direct.answer == Answer::pending || out == Answer::pending || in == Answer::pending) return std::nullopt;
  if (out == Answer::failed && in == Answer::ok) return Verdict::own_nic;
  if (out == Answer::ok && in == Answer::failed) return Verdict::peer_nic;
  if (out == Answer::ok && in == Answer::ok) return Verdict::path;
  return Verdict::undecided;
}

std::string Localizer::text_of(const Probe& probe) const {
  if (probe.from.rank < 0 || probe.to.rank < 0) return "there is no third NIC to ask";
  const std::string who = name_of(probe.from) + " -> " + name_of(probe.to) + " ";
  switch (probe.answer) {
    case Answer::ok: return who + "answered in " + milliseconds(probe.took_ns);
    case Answer::failed:
      return who + "no answer in " + (probe.asked ? "" : std::to_string(probe.tries) + " probes of ") + milliseconds(options_.limit_ns);
    case Answer::unknown: return who + "not known: rank " + std::to_string(probe.from.rank) + " did not say";
    case Answer::pending: return who + "not answered yet";
  }
  return who;
}

std::string Localizer::evidence(const Case& each, std::int64_t) const {
  if (each.local != NicState::up)
    return name_of(each.direct.from) + (each.local == NicState::down ? " is down" : " has no cable") + ", says the system";
  std::string text = text_of(each.direct);
  if (each.direct.answer == Answer::ok) return text;
  return text + "; " + text_of(each.out) + "; " + text_of(each.in);
}

std::vector<Finding> Localizer::poll(std::span<const Datagram> messages, std::int64_t now_ns) {
  for (const Datagram& datagram : messages) take(datagram, now_ns);
  std::vector<Finding> findings;
  for (Case& each : cases_) {
    if (!judge(each, now_ns)) work(each, now_ns);
    if (const std::optional<Verdict> verdict = judge(each, now_ns)) {
      findings.push_back({each.path, *verdict, evidence(each, now_ns)});
      each.path.peer = -1;
    }
  }
  std::erase_if(cases_, [](const Case& each) { return each.path.peer < 0; });
  for (Errand& each : errands_) work(each, now_ns);
  std::erase_if(errands_, [&](const Errand& each) { return each.ended_ns != 0 && now_ns - each.ended_ns > 4 * options_.limit_ns; });
  return findings;
}

std::int64_t Localizer::wake_ns() const {
  std::int64_t wake = kNever;
  for (const Case& each : cases_) wake = std::min(wake, each.next_ns);
  for (const Errand& each : errands_)
    wake = std::min(wake, each.ended_ns == 0 ? each.next_ns : each.ended_ns + 4 * options_.limit_ns + 1);
  return wake;
}

void Localizer::reset() {
  cases_.clear();
  errands_.clear();
}

}  // namespace ccl_lab

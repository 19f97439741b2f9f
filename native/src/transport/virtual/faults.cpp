// What is done to links, NICs, ranks and mail; see network.hpp.
#include <algorithm>
#include <utility>

#include "transport/virtual/network.hpp"
#include "transport/virtual/virtual.hpp"

namespace ccl_lab {

// ---- links that end

// This end is told: everything under way here fails, and one event says why.
void VirtualNetwork::break_end(Link& link, int end, const Status& status) {
  if (link.broken[end] || link.retired[end]) return;
  link.broken[end] = true;
  ++nic_at(link, end).broken_links;
  VirtualTransport& here = *transports_[static_cast<std::size_t>(link.rank[end])];
  for (Op& op : link.way[end].ops) {
    if (op.left || op.kind == Kind::reply) continue;
    ++counters.failed;
    here.done_.push_back({link.id, {op.kind == Kind::put ? op.put.cookie : op.get.cookie, status}});
  }
  link.way[end].ops.clear();
  link.way[end].to_send = 0;
  const Path& path = link.path[end];
  here.failures_.push_back({link.id, {path.peer, path.nic, status, path.peer_nic}});
  wake(link.rank[end]);
  if (options_.tells_peer) tell_other(link, end, "closed the connection");
}

// As far as the way there is open.
void VirtualNetwork::tell_other(Link& link, int end, const char* what) {
  const int other = 1 - end;
  if (!usable(link, other) || blocked(link, end)) return;
  const std::string text = "path of " + where(link, other) + ": the peer " + what;
  after(flight_ns(), [this, id = link.id, other, text] {
    Link* const found = find(id);
    if (found == nullptr || blocked(*found, 1 - other)) return;
    break_end(*found, other, Status(Code::link_down, text, found->path[other].peer, found->path[other].nic));
  });
}

void VirtualNetwork::break_ends(Link& link, int near, Told told, const Status& status) {
  const auto bits = static_cast<unsigned>(told);
  for (int k = 0; k < 2; ++k) {
    const int end = k == 0 ? near : 1 - near;
    if ((bits >> k & 1) == 0) continue;
    Status here = status;
    if (here.rank < 0) {
      here.rank = link.path[end].peer;
      here.nic = link.path[end].nic;
    }
    break_end(link, end, here);
  }
}

void VirtualNetwork::retire(Link& link, int end) {
  const int rank = link.rank[end];
  const Path path = link.path[end];
  const std::uint32_t id = link.id;
  point(VirtualPoint::retiring, rank, path, {});
  for (const Op& op : link.way[end].ops) counters.forgotten += !op.left && op.kind != Kind::reply;
  link.retired[end] = true;
  link.way[end].ops.clear();
  link.way[end].to_send = 0;
  transports_[static_cast<std::size_t>(rank)]->forget(id);
  if (options_.tells_peer && !link.broken[end]) tell_other(link, end, "closed the connection");
  point(VirtualPoint::retired, rank, path, {});
}

// ---- what blocks

bool VirtualNetwork::passes(int from, int nic_from, int to, int nic_to) const {
  const VirtualNic& a = nic(options_.node_of[static_cast<std::size_t>(from)], nic_from);
  const VirtualNic& b = nic(options_.node_of[static_cast<std::size_t>(to)], nic_to);
  return a.state == NicState::up && b.state == NicState::up && !a.silent_tx && !b.silent_rx && !killed(from) && !killed(to);
}

bool VirtualNetwork::stopped(int from, int nic_from, int to, int nic_to) {
  if (passes(from, nic_from, to, nic_to)) return false;
  const VirtualNic& a = nic(options_.node_of[static_cast<std::size_t>(from)], nic_from);
  const VirtualNic& b = nic(options_.node_of[static_cast<std::size_t>(to)], nic_to);
  if (a.state == NicState::down || b.state == NicState::down) effect(VirtualFault::nic_down);
  else if (a.state == NicState::unplugged || b.state == NicState::unplugged) effect(VirtualFault::unplugged);
  else if (a.silent_tx || b.silent_rx) effect(VirtualFault::silent);
  else effect(VirtualFault::killed);
  return true;
}

// Something that blocked may be gone: what waited goes on.
void VirtualNetwork::kick(Link& link) {
  for (int from = 0; from < 2; ++from) {
    Direction& way = link.way[from];
    schedule_tx(link, from, now_ns_);
    if (!way.wire.empty() && !way.rx_waits) {
      const std::int64_t late = std::max(way.wire.front().arrives_ns, now_ns_ + options_.latency_ns);
      for (Piece& piece : way.wire) piece.arrives_ns = std::max(piece.arrives_ns, late);
      schedule_rx(link, from);
    }
    if (way.ack_waits) ack(link, from);
  }
}

void VirtualNetwork::kick_all() {
  for (auto& [id, link] : links_) kick(link);
}

// ---- faults

void VirtualNetwork::set_nic(int node, int index, NicState state, Told told) {
  VirtualNic& at = nic(node, index);
  at.touched = true;
  at.state = state;
  if (state == NicState::up) return kick_all();
  const VirtualFault fault = state == NicState::down ? VirtualFault::nic_down : VirtualFault::unplugged;
  count_fault(fault);
  for (auto& [id, link] : links_)
    for (int end = 0; end < 2; ++end) {
      if (options_.node_of[static_cast<std::size_t>(link.rank[end])] != node || link.path[end].nic != index) continue;
      if (!usable(link, 0) && !usable(link, 1)) continue;
      effect(fault);
      break_ends(link, end, told, Status(Code::link_down, "path of " + where(link, end) + ": NIC " + std::to_string(index) + " of node " +
                                         std::to_string(node) + (state == NicState::down ? " is down" : " has no cable")));
    }
}

void VirtualNetwork::set_silent(int node, int index, bool tx, bool rx) {
  VirtualNic& at = nic(node, index);
  at.touched = true;
  at.silent_tx = tx;
  at.silent_rx = rx;
  if (tx || rx) count_fault(VirtualFault::silent);
  kick_all();
}

void VirtualNetwork::set_rate(int node, int index, double bytes_per_ns) {
  if (bytes_per_ns < options_.bytes_per_ns) count_fault(VirtualFault::rate);
  nic(node, index).touched = true;
  nic(node, index).bytes_per_ns = bytes_per_ns;
}

void VirtualNetwork::set_delay(int node, int index, std::int64_t delay_ns, std::int64_t jitter_ns) {
  if (delay_ns > 0 || jitter_ns > 0) count_fault(VirtualFault::delay);
  nic(node, index).touched = true;
  nic(node, index).delay_ns = delay_ns;
  nic(node, index).jitter_ns = jitter_ns;
}

std::uint32_t VirtualNetwork::cut(int rank, const Path& path, bool there, bool back) {
  Link* const link = link_of(rank, path);
  count_fault(VirtualFault::cut);
  if (link == nullptr) return 0;
  const int end = link->rank[0] == rank && link->path[0] == path ? 0 : 1;
  link->way[end].cut = there;
  link->way[1 - end].cut = back;
  for (int k = 0; k < 2; ++k) nic_at(*link, k).touched = true;
  return link->id;
}

void VirtualNetwork::mend(std::uint32_t id) {
  Link* const link = find(id);
  if (link == nullptr) return;
  for (Direction& way : link->way) way.cut = way.mute = false;
  kick(*link);
}

void VirtualNetwork::break_path(int rank, const Path& path, Told told) {
  Link* const link = link_of(rank, path);
  count_fault(VirtualFault::broken);
  if (link == nullptr) return;
  effect(VirtualFault::broken);
  const int end = link->rank[0] == rank && link->path[0] == path ? 0 : 1;
  for (int k = 0; k < 2; ++k) nic_at(*link, k).touched = true;
  break_ends(*link, end, told, Status(Code::link_down, "path of " + where(*link, end) + ": the connection was reset"));
}

void VirtualNetwork::lose_confirmations(int rank, const Path& path) {
  Link* const link = link_of(rank, path);
  count_fault(VirtualFault::unconfirmed);
  if (link == nullptr) return;
  const int end = link->rank[0] == rank && link->path[0] == path ? 0 : 1;
  for (int k = 0; k < 2; ++k) nic_at(*link, k).touched = true;
  link->way[end].mute = true;
}

void VirtualNetwork::fail_completions(int node, int index, std::uint32_t n) {
  count_fault(VirtualFault::bad_completion);
  nic(node, index).touched = true;
  nic(node, index).bad_completions += n;
}

void VirtualNetwork::fail_posts(int node, int index, std::uint32_t n) {
  count_fault(VirtualFault::bad_post);
  nic(node, index).touched = true;
  nic(node, index).bad_posts += n;
}

// Near, here, is the rank that dies: it is past being told.
void VirtualNetwork::kill(int rank, Told told) {
  count_fault(VirtualFault::killed);
  const bool tell = (static_cast<unsigned>(told) & 2u) != 0;
  std::vector<std::pair<Link*, int>> theirs;
  for (auto& [id, link] : links_)
    for (int end = 0; end < 2; ++end)
      if (link.rank[end] == rank) theirs.push_back({&link, end});
  for (const auto& [link, end] : theirs) {
    effect(VirtualFault::killed);
    if (tell && usable(*link, 1 - end))
      break_end(*link, 1 - end, Status(Code::link_down, "path of " + where(*link, 1 - end) + ": the peer closed the connection",
                                       rank, link->path[1 - end].nic));
  }
  dead_[static_cast<std::size_t>(rank)] = 1;
  mailboxes_[static_cast<std::size_t>(rank)].clear();
}

// ---- mail

void VirtualNetwork::set_mail(std::uint64_t lost_ppm, std::uint64_t doubled_ppm, std::uint64_t late_ppm, std::int64_t late_ns) {
  if (lost_ppm > 0) count_fault(VirtualFault::mail_lost);
  if (doubled_ppm > 0) count_fault(VirtualFault::mail_doubled);
  if (late_ppm > 0) count_fault(VirtualFault::mail_late);
  mail_lost_ppm_ = lost_ppm;
  mail_doubled_ppm_ = doubled_ppm;
  mail_late_ppm_ = late_ppm;
  mail_late_ns_ = late_ns;
}

void VirtualNetwork::send(const Mail& mail) {
  if (mail.to < 0 || static_cast<std::size_t>(mail.to) >= dead_.size() || killed(mail.from)) return;
  MailFate fate;
  if (random_.chance_ppm(mail_lost_ppm_)) fate.copies = 0;
  else if (random_.chance_ppm(mail_doubled_ppm_)) fate.copies = 2;
  if (random_.chance_ppm(mail_late_ppm_)) fate.late_ns = random_.between(0, mail_late_ns_);
  if (on_send) on_send(mail, fate);
  if (fate.copies == 0) return effect(VirtualFault::mail_lost);
  if (fate.copies > 1) effect(VirtualFault::mail_doubled);
  if (fate.late_ns > 0) effect(VirtualFault::mail_late);
  const bool by_nic = mail.nic >= 0;
  if (by_nic ? stopped(mail.from, mail.nic, mail.to, mail.peer_nic) : mail_cut_[static_cast<std::size_t>(mail.from)] != 0) return;
  for (int i = 0; i < fate.copies; ++i) {
    const std::int64_t takes = by_nic ? flight_ns() : options_.mail_latency_ns + random_.between(0, options_.mail_jitter_ns);
    // The second of two may come much later: what an old message says is then no longer true.
    const std::int64_t spread = i == 0 ? 0 : random_.between(0, random_.one_in(2) ? 1'000'000 : 400'000'000);
    after(takes + fate.late_ns + spread, [this, mail] { deliver(mail); });
  }
}

void VirtualNetwork::deliver(const Mail& mail) {
  const auto to = static_cast<std::size_t>(mail.to);
  if (dead_[to] || (mail.nic < 0 && mail_cut_[to])) return;
  if (mail.nic >= 0 && stopped(mail.from, mail.nic, mail.to, mail.peer_nic)) return;
  mailboxes_[to].push_back(mail);
  wake(mail.to);
  if (on_arrival) on_arrival(mail);
}

int VirtualNetwork::receive(int rank, std::vector<Mail>& arrived) {
  std::vector<Mail>& box = mailboxes_[static_cast<std::size_t>(rank)];
  const int n = static_cast<int>(box.size());
  arrived.insert(arrived.end(), box.begin(), box.end());
  box.clear();
  return n;
}

}  // namespace ccl_lab

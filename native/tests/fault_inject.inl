// How the fault simulation hears of protocol points and does what was planned for them; see fault_sim.hpp.

namespace ccl_lab::check {

inline void FaultSim::hook() {
  network_.on_point = [this](VirtualPoint what, int rank, const Path& path, const Notice& notice) {
    switch (what) {
      case VirtualPoint::before_post: reach(SimPoint::before_post, rank, path); break;
      case VirtualPoint::posted:
        reach(SimPoint::posted, rank, path);
        if (notice.lane != lane_id(path.nic, path.peer_nic)) reach(SimPoint::backup_post, rank, path);
        break;
      case VirtualPoint::arrived: reach(SimPoint::arrived, rank, path); break;
      case VirtualPoint::confirmed: reach(SimPoint::confirmed, rank, path); break;
      case VirtualPoint::retiring: reach(SimPoint::retiring, rank, path); break;
      case VirtualPoint::retired: reach(SimPoint::retired, rank, path); break;
      default: break;
    }
  };
  for (int r = 0; r < scenario_.n_ranks(); ++r)
    at(r).on_landed = [this, r](const Path& path, const Notice& notice, bool published) {
      reach(SimPoint::told, r, path);
      if (notice.signal < 0) reach(SimPoint::data_before_signal, r, path);
      if (!published) reach(SimPoint::parked, r, path);
    };
  network_.on_send = [this](const Mail& mail, MailFate& fate) { fates(mail, fate); };
  network_.on_arrival = [this](const Mail& mail) {
    const Result<Message> message = decode(mail.bytes.data(), mail.bytes.size());
    if (!message.ok()) return;
    const SimPoint sent = sent_point(message.value().kind);
    if (sent == SimPoint::count) return;
    reach(static_cast<SimPoint>(static_cast<int>(sent) + 1), mail.to, {mail.from, message.value().peer_nic, message.value().nic});
  };
  for (Injection& each : injections_) {
    if (each.point != SimPoint::at_time) continue;
    network_.at(each.at_ns, [this, &each] {
      if (each.over) return;
      const int n = scenario_.n_ranks();
      const int rank = static_cast<int>(random_.below(static_cast<std::uint64_t>(n)));
      const int peer = (rank + 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(n - 1)))) % n;
      const auto nic = static_cast<std::uint16_t>(random_.below(static_cast<std::uint64_t>(scenario_.n_nics - 1)));
      inject(each, rank, {peer, nic, nic}, nullptr);
    });
  }
}

inline void FaultSim::reach(SimPoint point, int rank, const Path& path) {
  ++out_.reached[static_cast<std::size_t>(point)];
  for (Injection& each : injections_)
    if (each.point == point && !each.hit && !each.over && !is_sent_point(point) && each.skip-- <= 0) inject(each, rank, path, nullptr);
}

// A message that is sent is a point where its own fate can be chosen too.
inline void FaultSim::fates(const Mail& mail, MailFate& fate) {
  const Result<Message> message = decode(mail.bytes.data(), mail.bytes.size());
  if (!message.ok()) return;
  const SimPoint point = sent_point(message.value().kind);
  if (point == SimPoint::count) return;
  ++out_.reached[static_cast<std::size_t>(point)];
  const Path path{mail.to, message.value().nic, message.value().peer_nic};
  trace(mail.from, std::string("says ") + kSimPointNames[static_cast<std::size_t>(point)] + " " + text_of(path) + " generation " +
                       std::to_string(message.value().generation) + " position " + std::to_string(message.value().position) +
                       " received " + std::to_string(message.value().received));
  for (Injection& each : injections_)
    if (each.point == point && !each.hit && !each.over && each.skip-- <= 0) inject(each, mail.from, path, &fate);
}

// The last NIC of every node is never touched, but by a fault that is meant to cut off the node.
inline void FaultSim::inject(Injection& injection, int rank, Path path, MailFate* fate) {
  if (path.peer < 0) path = {(rank + 1) % scenario_.n_ranks(), 0, 0};
  const auto spared = static_cast<std::uint16_t>(scenario_.n_nics - 1);
  if (path.nic == spared && path.peer_nic == spared) path.nic = path.peer_nic = 0;
  bool far = injection.far;
  if ((far ? path.peer_nic : path.nic) == spared) far = !far;
  injection.far = far;
  injection.hit = true;
  injection.hit_ns = network_.now_ns();
  if (healing_ && injection.heal_ns == 0) injection.heal_ns = 5'000'000;
  quiet_ns_ = std::max(quiet_ns_, injection.hit_ns + (injection.fault == SimFault::flap ? 12 : 1) * std::max<std::int64_t>(injection.heal_ns, 5'000'000));
  const int node = node_of(far ? path.peer : rank), nic = far ? path.peer_nic : path.nic;
  trace(far ? path.peer : rank, std::string("INJECT ") + kSimFaultNames[static_cast<std::size_t>(injection.fault)] + " at " +
                                    kSimPointNames[static_cast<std::size_t>(injection.point)] + ", NIC " + std::to_string(nic) + " of node " +
                                    std::to_string(node) + ", path " + text_of(path) + " of rank " + std::to_string(rank));
  bool did = false;
  if (injection.fault >= SimFault::mail_lost && injection.fault <= SimFault::mail_cut) did = inject_mail(injection, far ? path.peer : rank, fate);
  else if (injection.fault == SimFault::rank_paused || injection.fault >= SimFault::rank_killed) did = inject_rank(injection, far ? path.peer : rank);
  else did = inject_nic(injection, node, nic) || inject_link(injection, rank, path);
  if (!did) wrong("the simulation cannot inject " + std::string(kSimFaultNames[static_cast<std::size_t>(injection.fault)]));
}

inline bool FaultSim::inject_nic(const Injection& injection, int node, int nic) {
  const auto later = [&](auto undo) {
    if (injection.heal_ns > 0) network_.after(injection.heal_ns, undo);
    return true;
  };
  const auto down = [&](NicState state, Told told) {
    network_.set_nic(node, nic, state, told);
    return later([this, node, nic] { network_.set_nic(node, nic, NicState::up, Told::nobody); });
  };
  const auto silent = [&](bool tx, bool rx) {
    network_.set_silent(node, nic, tx, rx);
    return later([this, node, nic] { network_.set_silent(node, nic, false, false); });
  };
  switch (injection.fault) {
    case SimFault::nic_down_both: return down(NicState::down, Told::both);
    case SimFault::nic_down_near: return down(NicState::down, Told::near);
    case SimFault::nic_down_far: return down(NicState::down, Told::far);
    case SimFault::unplugged: return down(NicState::unplugged, Told::nobody);
    case SimFault::silent_tx: return silent(true, false);
    case SimFault::silent_rx: return silent(false, true);
    case SimFault::silent_both: return silent(true, true);
    case SimFault::flap: flap(node, nic, std::max<std::int64_t>(injection.heal_ns, 100'000), 4); return true;
    case SimFault::rate_cap:
      network_.set_rate(node, nic, scenario_.network.bytes_per_ns / 20);
      return later([this, node, nic] { network_.set_rate(node, nic, scenario_.network.bytes_per_ns); });
    case SimFault::jitter:
      network_.set_delay(node, nic, 200'000, 300'000);
      return later([this, node, nic] { network_.set_delay(node, nic, 0, 0); });
    case SimFault::bad_completion: network_.fail_completions(node, nic, 1); return true;
    case SimFault::bad_post: network_.fail_posts(node, nic, 1); return true;
    default: return false;
  }
}

inline bool FaultSim::inject_link(const Injection& injection, int rank, const Path& path) {
  const auto cut = [&](bool there, bool back, std::int64_t for_ns) {
    const std::uint32_t link = network_.cut(rank, path, there, back);
    if (link == 0) return;
    cut_links_.push_back(link);
    if (for_ns > 0) network_.after(for_ns, [this, link] { network_.mend(link); });
  };
  switch (injection.fault) {
    case SimFault::cut_there: cut(true, false, injection.heal_ns); return true;
    case SimFault::cut_back: cut(false, true, injection.heal_ns); return true;
    case SimFault::reset_both: network_.break_path(rank, path, Told::both); return true;
    case SimFault::reset_near: network_.break_path(rank, path, Told::near); return true;
    case SimFault::reset_far: network_.break_path(rank, path, Told::far); return true;
    case SimFault::unconfirmed: network_.lose_confirmations(rank, path); return true;
    case SimFault::late_data:
      // The sender hears that its path is gone while its bytes are on the way: they come when others have been sent.
      cut(true, false, random_.between(50'000, 5'000'000));
      network_.break_path(rank, path, Told::near);
      return true;
    default: return false;
  }
}

inline bool FaultSim::inject_rank(const Injection& injection, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  const int node = node_of(rank);
  disturbed_ranks_ = true;
  switch (injection.fault) {
    case SimFault::rank_paused:
      state_[r].paused_until_ns = network_.now_ns() + std::max<std::int64_t>(injection.heal_ns, 1'000'000);
      return true;
    case SimFault::rank_killed:
    case SimFault::rank_killed_silently:
      culprits_[r][0] = true;
      silence_ = silence_ || injection.fault == SimFault::rank_killed_silently;
      network_.kill(rank, injection.fault == SimFault::rank_killed ? Told::far : Told::nobody);
      return true;
    case SimFault::node_dark:
      for (int k = 0; k < scenario_.n_nics; ++k)
        network_.set_nic(node, k, NicState::down, static_cast<Told>(random_.below(4)));
      for (int other = 0; other < scenario_.n_ranks(); ++other)
        if (node_of(other) == node) culprits_[static_cast<std::size_t>(other)][1] = true;
      return true;
    case SimFault::revoked: {
      network_.count_fault(VirtualFault::revoked);
      culprits_[r][0] = true;
      const Status gone = at(rank).transport.deregister_region(kArenaRegionKey);
      return gone.ok() || gone.code == Code::bounds;
    }
    default: return false;
  }
}

inline bool FaultSim::inject_mail(const Injection& injection, int rank, MailFate* fate) {
  if (injection.fault == SimFault::mail_cut) {
    network_.cut_mail(rank, true);
    network_.after(std::max<std::int64_t>(injection.heal_ns, 1'000'000), [this, rank] { network_.cut_mail(rank, false); });
    return true;
  }
  if (fate != nullptr) {
    if (injection.fault == SimFault::mail_lost) fate->copies = 0;
    if (injection.fault == SimFault::mail_doubled) fate->copies = 2;
    if (injection.fault == SimFault::mail_late) fate->late_ns = random_.between(100'000, random_.one_in(2) ? 30'000'000 : 500'000'000);
    return true;
  }
  const auto share = [&](SimFault of) { return injection.fault == of ? std::uint64_t{300'000} : 0; };
  network_.set_mail(share(SimFault::mail_lost), share(SimFault::mail_doubled), share(SimFault::mail_late), random_.one_in(2) ? 20'000'000 : 500'000'000);
  if (injection.heal_ns > 0) network_.after(injection.heal_ns, [this] { network_.set_mail(0, 0, 0, 0); });
  return true;
}

inline void FaultSim::flap(int node, int nic, std::int64_t period_ns, int left) {
  const bool down = network_.nic(node, nic).state == NicState::up;
  network_.set_nic(node, nic, down ? NicState::down : NicState::up, static_cast<Told>(random_.below(4)));
  if (left > 0 || down) network_.after(period_ns, [=, this] { flap(node, nic, period_ns, left - 1); });
}

inline void FaultSim::undo_all() {
  for (int node = 0; node < scenario_.n_nodes; ++node)
    for (int k = 0; k < scenario_.n_nics; ++k) {
      VirtualNic& nic = network_.nic(node, k);
      nic.bad_posts = nic.bad_completions = 0;
      network_.set_delay(node, k, 0, 0);
      network_.set_rate(node, k, scenario_.network.bytes_per_ns);
      network_.set_silent(node, k, false, false);
      network_.set_nic(node, k, NicState::up, Told::nobody);
    }
  for (const std::uint32_t link : cut_links_) network_.mend(link);
  network_.set_mail(0, 0, 0, 0);
  for (int r = 0; r < scenario_.n_ranks(); ++r) {
    network_.cut_mail(r, false);
    state_[static_cast<std::size_t>(r)].paused_until_ns = 0;
  }
}

}  // namespace ccl_lab::check

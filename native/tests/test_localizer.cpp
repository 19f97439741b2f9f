// The three-point probes: every row of the table, with messages that are lost, late and doubled, on a virtual network.
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "fault/localizer.hpp"
#include "fault/virtual_messenger.hpp"

namespace ccl_lab {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Ranks that answer probes and run errands, as Rails does.
class World {
 public:
  World(int n_nodes, int n_nics, std::uint64_t seed = 1) : network(options(n_nodes, n_nics, seed)) {
    for (int r = 0; r < n_nodes; ++r) {
      node_of.push_back(r);
      messengers_.push_back(std::make_unique<VirtualMessenger>(network, r));
      localizers.push_back(std::make_unique<Localizer>(r, *messengers_.back()));
      silent.push_back(0);
    }
  }

  // Rank 0 asks about its path; the first finding, or none within 200 ms.
  Finding find(const Path& path, NicState local = NicState::up) {
    localizers[0]->begin(path, local, choose_thirds(0, path, node_of, network.options().n_nics), 0, network.now_ns());
    const std::int64_t began_ns = network.now_ns();
    while (network.now_ns() < began_ns + 200 * kMs) {
      for (std::size_t r = 0; r < localizers.size(); ++r) {
        std::vector<Finding> findings = step(r);
        if (r == 0 && !findings.empty()) {
          took_ns = network.now_ns() - began_ns;
          return findings.front();
        }
      }
      network.advance(network.now_ns() + 50'000);
    }
    return {};
  }

  VirtualNetwork network;
  std::vector<std::int32_t> node_of;
  std::vector<std::unique_ptr<Localizer>> localizers;
  std::vector<char> silent;  // this rank does nothing
  std::int64_t took_ns = 0;

 private:
  static VirtualOptions options(int n_nodes, int n_nics, std::uint64_t seed) {
    VirtualOptions o;
    for (int r = 0; r < n_nodes; ++r) o.node_of.push_back(r);
    o.n_nics = n_nics;
    o.seed = seed;
    return o;
  }

  std::vector<Finding> step(std::size_t r) {
    std::vector<Datagram> came;
    messengers_[r]->poll(network.now_ns(), came);
    if (silent[r]) return {};
    for (const Datagram& each : came) {
      if (each.message.kind != MessageKind::probe) continue;
      Datagram reply = each;
      reply.message.kind = MessageKind::reply;
      reply.message.from = static_cast<std::int32_t>(r);
      messengers_[r]->send(reply);
    }
    return localizers[r]->poll(came, network.now_ns());
  }

  std::vector<std::unique_ptr<VirtualMessenger>> messengers_;
};

bool says(const Finding& finding, const char* text) { return finding.evidence.find(text) != std::string::npos; }

// Between those two NICs only: what passes both can be reached by others.
void cut(World& world, int rank, int nic, int peer, int peer_nic) {
  world.network.on_send = [=](const Mail& mail, MailFate& fate) {
    const bool there = mail.from == rank && mail.nic == nic && mail.to == peer && mail.peer_nic == peer_nic;
    const bool back = mail.from == peer && mail.nic == peer_nic && mail.to == rank && mail.peer_nic == nic;
    if (there || back) fate.copies = 0;
  };
}

TEST(a_third_node_tells_the_rows_of_the_table_apart) {
  const Path path{1, 1, 1};
  {
    World world(3, 2);
    const Finding found = world.find(path);
    CHECK_EQ(found.verdict, Verdict::transient);
    CHECK(found.path == path);
    CHECK(world.took_ns < kMs);
    CHECK(says(found, "rank 0 NIC 1 -> rank 1 NIC 1 answered in "));
  }
  {
    World world(3, 2);
    world.network.set_silent(0, 1, true, false);
    const Finding found = world.find(path);
    CHECK_EQ(found.verdict, Verdict::own_nic);
    CHECK(says(found, "rank 0 NIC 1 -> rank 1 NIC 1 no answer in 6 probes of 60 ms; rank 0 NIC 1 -> rank 2 NIC 1 no answer in 6 probes of 60 ms; "
                      "rank 2 NIC 1 -> rank 1 NIC 1 answered in "));
  }
  {
    World world(3, 2);
    world.network.set_nic(1, 1, NicState::down, Told::nobody);
    const Finding found = world.find(path);
    CHECK_EQ(found.verdict, Verdict::peer_nic);
    CHECK(says(found, "rank 2 NIC 1 -> rank 1 NIC 1 no answer in 60 ms"));
    CHECK(world.took_ns < 80 * kMs);
  }
  {
    World world(3, 2);
    cut(world, 0, 1, 1, 1);
    CHECK_EQ(world.find(path).verdict, Verdict::path);
    CHECK(world.took_ns < 70 * kMs);
  }
  {
    World world(3, 2);
    world.network.set_silent(0, 1, true, true);
    world.network.set_silent(1, 1, true, true);
    CHECK_EQ(world.find(path).verdict, Verdict::undecided);
  }
}

TEST(two_nodes_use_their_other_nics) {
  const Path path{1, 0, 0};
  const Thirds thirds = choose_thirds(0, path, std::vector<std::int32_t>{0, 1}, 3);
  CHECK(thirds.to == (Spot{1, 1}));
  CHECK(thirds.from == (Spot{0, 1}));
  const auto verdict = [&](auto fault) {
    World world(2, 3);
    fault(world);
    return world.find(path).verdict;
  };
  CHECK_EQ(verdict([](World&) {}), Verdict::transient);
  CHECK_EQ(verdict([](World& w) { w.network.set_silent(0, 0, false, true); }), Verdict::own_nic);
  CHECK_EQ(verdict([](World& w) { w.network.set_silent(1, 0, true, false); }), Verdict::peer_nic);
  CHECK_EQ(verdict([](World& w) { cut(w, 0, 0, 1, 0); }), Verdict::path);
  CHECK_EQ(verdict([](World& w) { w.network.kill(1, Told::nobody); }), Verdict::undecided);
}

TEST(one_nic_and_no_third_node_cannot_be_told_apart) {
  World world(2, 1);
  world.network.set_silent(1, 0, true, true);
  const Finding found = world.find({1, 0, 0});
  CHECK_EQ(found.verdict, Verdict::undecided);
  CHECK(says(found, "there is no third NIC to ask"));
}

TEST(what_the_system_says_of_the_port_needs_no_probe) {
  World world(3, 2);
  CHECK_EQ(world.find({1, 0, 0}, NicState::down).verdict, Verdict::own_nic);
  CHECK_EQ(world.took_ns, 0);
  const Finding found = world.find({1, 1, 1}, NicState::unplugged);
  CHECK_EQ(found.verdict, Verdict::own_cable);
  CHECK(says(found, "rank 0 NIC 1 has no cable"));
}

TEST(lost_doubled_and_late_messages_change_no_verdict) {
  std::uint64_t lost = 0, doubled = 0, late = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    World world(3, 2, seed);
    const Path path{1, 0, 0};
    Verdict want = Verdict::transient;
    if (seed % 3 == 1) {
      world.network.set_silent(0, 0, true, false);
      want = Verdict::own_nic;
    } else if (seed % 3 == 2) {
      world.network.set_silent(1, 0, false, true);
      want = Verdict::peer_nic;
    }
    world.network.set_mail(seed % 2 == 0 ? 50'000 : 0, 300'000, 300'000, 5 * kMs);
    CHECK_EQ(world.find(path).verdict, want);
    CHECK(world.took_ns <= 100 * kMs);
    lost += world.network.effects(VirtualFault::mail_lost);
    doubled += world.network.effects(VirtualFault::mail_doubled);
    late += world.network.effects(VirtualFault::mail_late);
  }
  CHECK(lost > 50);
  CHECK(doubled > 200);
  CHECK(late > 200);
}

TEST(a_third_rank_that_says_nothing_is_no_evidence) {
  World world(3, 2);
  world.network.set_silent(1, 0, true, true);
  world.silent[2] = 1;
  const Finding found = world.find({1, 0, 0});
  CHECK_EQ(found.verdict, Verdict::undecided);
  CHECK(says(found, "rank 2 did not say"));
  CHECK(world.took_ns <= 101 * kMs);
}

TEST(an_answer_that_comes_too_late_changes_nothing) {
  World world(3, 2);
  world.network.on_send = [](const Mail& mail, MailFate& fate) {
    if (mail.from == 1 && mail.nic >= 0) fate.late_ns = 150 * kMs;
  };
  CHECK_EQ(world.find({1, 0, 0}).verdict, Verdict::peer_nic);
  world.network.on_send = nullptr;
  CHECK_EQ(world.find({1, 0, 0}).verdict, Verdict::transient);
  CHECK(world.took_ns < 20 * kMs);
}

TEST(errands_are_forgotten_and_questions_repeated) {
  World world(3, 2);
  world.network.set_silent(0, 0, true, true);
  int told = 0;
  world.network.on_send = [&](const Mail& mail, MailFate& fate) {
    const Result<Message> message = decode(mail.bytes.data(), mail.bytes.size());
    if (message.ok() && message.value().kind == MessageKind::told && ++told <= 2) fate.copies = 0;
  };
  CHECK_EQ(world.find({1, 0, 0}).verdict, Verdict::own_nic);
  CHECK(told >= 3);
  CHECK(world.localizers[2]->busy());
  CHECK(world.localizers[2]->wake_ns() < world.network.now_ns() + 500 * kMs);
  world.network.advance(world.network.now_ns() + 500 * kMs);
  CHECK(world.localizers[2]->poll({}, world.network.now_ns()).empty());
  CHECK(!world.localizers[2]->busy());
}

}  // namespace
}  // namespace ccl_lab

// The rails of an engine from Python: messages about paths, what happened to them, and which may come back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <utility>

#include "comm/engine.hpp"
#include "fault/udp_messenger.hpp"
#include "status.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using ccl_lab::Code;
using ccl_lab::Engine;
using ccl_lab::PathInfo;
using ccl_lab::RailEvent;
using ccl_lab::Rails;
using ccl_lab::released;
using ccl_lab::Status;
using ccl_lab::UdpMessenger;

namespace {


using Address = std::pair<std::string, std::uint16_t>;

std::vector<Address> open_messenger(Engine& engine, const nb::bytes& key, const std::string& out_of_band,
                                    const std::vector<std::string>& nics, const std::vector<std::int32_t>& node_of) {
  ccl_lab::RailOptions rails;
  rails.node_of = node_of;
  rails.n_nics = static_cast<int>(nics.size());
  ccl_lab::UdpOptions where;
  where.rank = engine.segment()->rank();
  where.n_ranks = engine.segment()->n_ranks();
  if (key.size() != sizeof where.key) ccl_lab::check(Status(Code::usage, "open_messenger: the key has 16 bytes"));
  std::memcpy(&where.key, key.c_str(), sizeof where.key);
  where.out_of_band.address = out_of_band;
  for (const std::string& nic : nics) where.nics.push_back({nic, 0});
  where.message_faults = &engine.segment()->control().message_faults;
  ccl_lab::check(engine.with_node_nics([&](std::span<ccl_lab::NicShaper> shapers, std::span<ccl_lab::NicFaults> faults) {
    where.shapers = shapers;
    where.nic_faults = faults;
  }));
  auto messenger = ccl_lab::take(UdpMessenger::create(std::move(where)));
  std::vector<Address> addresses{{messenger->out_of_band().address, messenger->out_of_band().port}};
  for (const ccl_lab::Endpoint& nic : messenger->nics()) addresses.emplace_back(nic.address, nic.port);
  ccl_lab::check(engine.set_messenger(std::move(messenger), rails));
  return addresses;
}

nb::dict event_of(const RailEvent& event) {
  nb::dict dict;
  dict["kind"] = ccl_lab::kRailEventNames[static_cast<std::size_t>(event.kind)];
  dict["verdict"] = ccl_lab::verdict_name(event.verdict);
  dict["peer"] = event.path.peer;
  dict["nic"] = event.path.nic;
  dict["peer_nic"] = event.path.peer_nic;
  dict["generation"] = event.generation;
  dict["at_ns"] = event.at_ns;
  dict["segments"] = event.segments;
  dict["text"] = event.text;
  return dict;
}

// ([(peer, nic, peer_nic, generation)], [event])
nb::tuple rail_news(Engine& engine) {
  struct Wanted {
    ccl_lab::Path path;
    std::uint32_t generation;
  };
  std::vector<Wanted> wanted;
  std::vector<RailEvent> events;
  const auto look = [&](Rails* rails) {
    if (rails == nullptr) return;
    for (const ccl_lab::Path& path : rails->wanted())
      if (const auto generation = rails->generation_wanted(path); generation.ok()) wanted.push_back({path, generation.value()});
    events = rails->events();
  };
  released([&] { return engine.with_rails(look); });
  nb::list paths;
  for (const Wanted& each : wanted) paths.append(nb::make_tuple(each.path.peer, each.path.nic, each.path.peer_nic, each.generation));
  nb::list happened;
  for (const RailEvent& event : events) happened.append(event_of(event));
  return nb::make_tuple(paths, happened);
}

nb::dict rails(Engine& engine) {
  std::vector<PathInfo> paths;
  Rails::Counters counters;
  const auto look = [&](Rails* found) {
    if (found == nullptr) return;
    paths = found->paths();
    counters = found->counters();
  };
  released([&] { return engine.with_rails(look); });
  nb::list list;
  for (const PathInfo& path : paths) {
    nb::dict dict;
    dict["peer"] = path.path.peer;
    dict["nic"] = path.path.nic;
    dict["peer_nic"] = path.path.peer_nic;
    dict["state"] = ccl_lab::kPathStateNames[static_cast<std::size_t>(path.state)];
    dict["generation"] = path.generation;
    dict["confirmed"] = path.confirmed;
    dict["received"] = path.received;
    dict["in_flight_bytes"] = path.in_flight_bytes;
    dict["why"] = path.why;
    list.append(dict);
  }
  nb::dict result;
  result["paths"] = list;
  result["lost"] = counters.lost;
  result["recovered"] = counters.recovered;
  result["resent"] = counters.resent;
  result["duplicates"] = counters.duplicates;
  result["ignored"] = counters.ignored;
  result["back"] = counters.back;
  return result;
}

}  // namespace

void bind_rails(nb::class_<Engine>& engine) {
  engine
      .def("open_messenger", &open_messenger, "key"_a, "out_of_band"_a, "nics"_a, "node_of"_a,
           "Repairs lost paths from here on; before the first connection. [(host, port)] of its sockets: out of band, then by NIC.")
      .def("set_messenger_peer",
           [](Engine& e, std::int32_t rank, const std::vector<Address>& addresses) {
             if (addresses.empty()) ccl_lab::check(Status(Code::usage, "a peer has at least its address out of band", rank));
             std::vector<ccl_lab::Endpoint> nics;
             for (std::size_t i = 1; i < addresses.size(); ++i) nics.push_back({addresses[i].first, addresses[i].second});
             const auto set = [&](ccl_lab::Messenger* messenger) {
               auto* const udp = dynamic_cast<UdpMessenger*>(messenger);
               if (udp == nullptr) return Status(Code::usage, "open_messenger first");
               return udp->set_peer(rank, {addresses[0].first, addresses[0].second}, nics);
             };
             released([&] { return e.with_messenger(set); });
           },
           "rank"_a, "addresses"_a)
      .def("path_missing",
           [](Engine& e, std::int32_t peer, std::uint16_t nic, std::uint16_t peer_nic, const std::string& why) {
             released([&] { return e.path_missing({peer, nic, peer_nic}, why); });
           },
           "peer"_a, "nic"_a, "peer_nic"_a, "why"_a, "A path that could not be connected is tried again as one that was lost.")
      .def_prop_ro("news_fd", [](const Engine& e) { return e.news_fd(); }, "Readable when rail_news() has something.")
      .def("rail_news", &rail_news, "([(peer, nic, peer_nic, generation)] that may be connected again, [what happened]); empties both.")
      .def("rails", &rails, "Every path with its state, and how often paths were lost, repaired and came back.");
}

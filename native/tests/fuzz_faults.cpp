// Random faults at random protocol points, from seeds, for a given time or number; says how to see a failure again.
//
//   fuzz_faults --seconds S | --seeds N   [--first-seed F] [--json FILE] [--expect-failure]
//   fuzz_faults --seed X                  one seed, with what happened
//   fuzz_faults --soak-hours H            one world for H hours of virtual time [--first-seed F] [--json FILE]
//
// Exit status 0: no seed failed; with --expect-failure (a build with one rule of the protocol left out): one did.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "fault_scenarios.hpp"

namespace {

using namespace ccl_lab;
using namespace ccl_lab::check;

struct Arguments {
  double seconds = 0;
  std::uint64_t seeds = 0;
  std::uint64_t first = 1;
  double soak_hours = 0;
  bool one = false;
  bool expect_failure = false;
  std::string json;
};

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--expect-failure") {
      a.expect_failure = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* const value = argv[++i];
    if (key == "--seconds") a.seconds = std::atof(value);
    else if (key == "--seeds") a.seeds = std::strtoull(value, nullptr, 10);
    else if (key == "--first-seed") a.first = std::strtoull(value, nullptr, 10);
    else if (key == "--soak-hours") a.soak_hours = std::atof(value);
    else if (key == "--json") a.json = value;
    else if (key == "--seed") {
      a.one = true;
      a.first = std::strtoull(value, nullptr, 10);
    } else return false;
  }
  return a.one || a.soak_hours > 0 || a.seconds > 0 || a.seeds > 0;
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::atol(line.c_str() + 6);
  return 0;
}

int run_one(std::uint64_t seed) {
  Tally tally;
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), describe(make_scenario(seed)).c_str());
  const Verdicts v = run_seed(seed, tally, true);
  for (const Injection& each : v.injections)
    std::printf("  %s at %s: %s\n", kSimFaultNames[static_cast<std::size_t>(each.fault)], kSimPointNames[static_cast<std::size_t>(each.point)],
                each.hit ? ("injected at " + std::to_string(each.hit_ns / 1000) + " us").c_str() : "the point was not reached");
  std::printf("  %.3f ms, %llu steps; paths lost %llu, settled %llu, back %llu; segments sent again %llu, messages ignored %llu; pieces "
              "dropped as stale %llu\n", static_cast<double>(v.virtual_ns) * 1e-6, static_cast<unsigned long long>(v.steps),
              static_cast<unsigned long long>(v.rails.lost), static_cast<unsigned long long>(v.rails.recovered),
              static_cast<unsigned long long>(v.rails.back), static_cast<unsigned long long>(v.rails.resent),
              static_cast<unsigned long long>(v.rails.ignored), static_cast<unsigned long long>(v.network.stale));
  std::printf("  %s\n", v.wrong.empty() ? v.ended_in_error ? "ended in an error that names the culprit" : "all invariants hold" : v.wrong.c_str());
  return v.wrong.empty() ? 0 : 1;
}

template <class Names>
void write_counts(std::ofstream& out, const char* key, const Names& names, const auto& counts) {
  out << "  \"" << key << "\": {";
  for (std::size_t i = 0; i < counts.size(); ++i) out << (i == 0 ? "" : ", ") << '"' << names[i] << "\": " << counts[i];
  out << "},\n";
}

void write_json(const Arguments& a, const Tally& t, double wall_s, long first_kib, long last_kib) {
  std::ofstream out(a.json);
  out << "{\n  \"what\": \"seeded faults on the virtual network: shipped executor and rails\",\n";
  out << "  \"first_seed\": " << a.first << ",\n  \"seeds\": " << t.runs << ",\n  \"failures\": " << t.failed << ",\n  \"hangs\": " << t.hung
      << ",\n  \"ended_in_named_error\": " << t.ended_in_error << ",\n  \"virtual_hours\": " << t.virtual_s / 3600
      << ",\n  \"wall_s\": " << wall_s << ",\n  \"steps\": " << t.steps << ",\n  \"resident_kib_first\": " << first_kib
      << ",\n  \"resident_kib_last\": " << last_kib << ",\n";
  out << "  \"rails\": {\"paths_lost\": " << t.rails.lost << ", \"handshakes\": " << t.rails.recovered << ", \"segments_resent\": "
      << t.rails.resent << ", \"duplicates\": " << t.rails.duplicates << ", \"messages_ignored\": " << t.rails.ignored << ", \"paths_back\": "
      << t.rails.back << "},\n";
  out << "  \"network\": {\"pieces\": " << t.network.pieces << ", \"stale_pieces_dropped\": " << t.network.stale << ", \"late_pieces_landed\": "
      << t.network.late << ", \"puts_failed\": " << t.network.failed << ", \"puts_forgotten\": " << t.network.forgotten << "},\n";
  write_counts(out, "injected", kVirtualFaultNames, t.injected);
  write_counts(out, "took_effect", kVirtualFaultNames, t.effects);
  write_counts(out, "points_reached", kSimPointNames, t.reached);
  out << "  \"hits\": {\n";
  for (std::size_t f = 0; f < kSimFaults; ++f) {
    out << "    \"" << kSimFaultNames[f] << "\": {";
    bool any = false;
    for (std::size_t p = 0; p < kSimPoints; ++p) {
      if (t.hits[f][p] == 0) continue;
      out << (any ? ", " : "") << '"' << kSimPointNames[p] << "\": " << t.hits[f][p];
      any = true;
    }
    out << (f + 1 < kSimFaults ? "},\n" : "}\n");
  }
  out << "  }\n}\n";
}

// Four nodes, four NICs each; memory is looked at once an hour.
int run_soak(const Arguments& a) {
  SeededRandom random(a.first);
  Scenario s;
  do {
    s = Scenario();
    s.seed = a.first;
    choose_world(s, random);
  } while (s.n_ranks() != 4 || s.n_nics != 4);
  for (int k = 0; k < 16; ++k) choose_plans(s, random);
  std::string hours;
  const auto begin = std::chrono::steady_clock::now();
  const Verdicts v = FaultSim(s).soak(static_cast<std::int64_t>(a.soak_hours * 3.6e12), [&](int hour) {
    const long kib = resident_kib();
    hours += (hours.empty() ? "" : ", ") + std::to_string(kib);
    std::printf("hour %d: %ld KiB resident\n", hour, kib);
    std::fflush(stdout);
  });
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%llu collectives, %llu faults, %llu paths lost, %llu back, %llu segments sent again, in %.1f s: %s\n",
              static_cast<unsigned long long>(v.collectives), static_cast<unsigned long long>(v.faults),
              static_cast<unsigned long long>(v.rails.lost), static_cast<unsigned long long>(v.rails.back),
              static_cast<unsigned long long>(v.rails.resent), wall_s, v.wrong.empty() ? "all invariants hold" : v.wrong.c_str());
  if (!a.json.empty())
    std::ofstream(a.json) << "{\"seed\": " << a.first << ", \"virtual_hours\": " << static_cast<double>(v.virtual_ns) / 3.6e12 << ", \"wall_s\": " << wall_s
                          << ", \"collectives\": " << v.collectives << ", \"faults\": " << v.faults << ", \"paths_lost\": " << v.rails.lost
                          << ", \"paths_back\": " << v.rails.back << ", \"segments_resent\": " << v.rails.resent << ", \"failures\": "
                          << (v.wrong.empty() ? 0 : 1) << ", \"resident_kib_by_hour\": [" << hours << "]}\n";
  return v.wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  if (!parse(argc, argv, a)) {
    std::fprintf(stderr, "usage: fuzz_faults --seconds S | --seeds N | --seed X  [--first-seed F] [--json FILE] [--expect-failure]\n");
    return 2;
  }
  if (a.one) return run_one(a.first);
  if (a.soak_hours > 0) return run_soak(a);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Tally tally;
  long first_kib = 0;
  for (std::uint64_t seed = a.first; (a.seeds == 0 || tally.runs < a.seeds) && (a.seconds == 0 || elapsed() < a.seconds); ++seed) {
    const Verdicts verdicts = run_seed(seed, tally);
    if (!verdicts.wrong.empty() && (tally.failed <= 20 && !a.expect_failure)) print_failure(seed, verdicts);
    if (!verdicts.wrong.empty() && a.expect_failure) break;
    if (tally.runs == 200) first_kib = resident_kib();
  }
  std::printf("%llu seeds, %llu failed, %llu hung, %llu ended in an error that names the culprit; %.2f virtual hours in %.1f s\n",
              static_cast<unsigned long long>(tally.runs), static_cast<unsigned long long>(tally.failed),
              static_cast<unsigned long long>(tally.hung), static_cast<unsigned long long>(tally.ended_in_error), tally.virtual_s / 3600, elapsed());
  if (!a.json.empty()) write_json(a, tally, elapsed(), first_kib, resident_kib());
  return (tally.failed == 0) != a.expect_failure ? 0 : 1;
}

// Variables of launchers; see launcher.hpp.
#include "api/launcher.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace ccl_lab::api {

namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* n_ranks;
  const char* local_ranks;  // number of ranks on this host
};

// Order matters: torchrun may run under srun, and Open MPI's mpirun also sets PMI variables on some systems.
constexpr Launcher kLaunchers[] = {
    {"ccl_lab", "CCL_LAB_RANK", "CCL_LAB_WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", nullptr},
};

Result<int> number(const Variables& get, const char* name, const char* launcher) {
  const char* text = get(name);
  if (text == nullptr)
    return Status(Code::config, std::string(launcher) + " set some of its variables but not " + name +
                                    ": set it, or start all ranks the same way");
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc() || at != end)
    return Status(Code::config, std::string(name) + "=\"" + text + "\" (set by " + launcher + ") is not a whole number");
  return value;
}

// The folder where sockets of this user's jobs lie; nobody else can enter it.
Result<std::string> private_folder(const Variables& get) {
  const char* base = get("TMPDIR");
  const std::string path = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/ccl_lab-" +
                           std::to_string(::getuid());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Status(Code::connect, "cannot make " + path + ": " + std::strerror(errno) + "; set TMPDIR, or a path in "
                                                                                       "CCL_LAB_RENDEZVOUS");
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::getuid() ||
      (found.st_mode & 077) != 0)
    return Status(Code::connect, path + " must be a folder of this user with mode 700: ranks meet there; remove it, or set a "
                                        "path in CCL_LAB_RENDEZVOUS");
  return path;
}

// A path as it is; host:port, or nothing, becomes a name in the private folder that is the same for all ranks of a job.
Result<std::string> meeting_point(const Variables& get, const Launcher& launcher) {
  const char* given = get("CCL_LAB_RENDEZVOUS");
  std::string name;
  if (given != nullptr && *given != '\0') {
    if (std::strchr(given, '/') != nullptr) return std::string(given);
    name = given;
  } else if (const char* port = get("MASTER_PORT"); port != nullptr) {
    const char* host = get("MASTER_ADDR");
    name = std::string(host != nullptr ? host : "localhost") + "-" + port;
  } else if (std::strcmp(launcher.name, "ccl_lab") == 0) {
    return Status(Code::config, "CCL_LAB_RANK is set but not CCL_LAB_RENDEZVOUS: set it to the path of a Unix socket that rank "
                                "0 is to make, say /tmp/my_job.sock");
  } else {
    name = "job-" + std::to_string(::getppid());  // ranks of one launcher on one host have one parent
  }
  for (char& letter : name)
    if (std::strchr("/: ", letter) != nullptr) letter = '-';
  Result<std::string> folder = private_folder(get);
  if (!folder.ok()) return folder.status();
  return *folder + "/" + name + ".sock";
}

bool several_nodes(const Variables& get) {
  const char* nodes = get("SLURM_STEP_NUM_NODES");
  if (nodes == nullptr) nodes = get("SLURM_NNODES");
  return nodes != nullptr && std::strcmp(nodes, "1") != 0;
}

}  // namespace

Result<Launch> find_launch(const Variables& get) {
  for (const Launcher& launcher : kLaunchers) {
    const bool srun = std::strcmp(launcher.name, "srun") == 0;
    if (get(launcher.rank) == nullptr) continue;
    // srun sets SLURM_PROCID=0 also in a batch script that starts nothing: one task is no job of ours.
    if (srun && (get(launcher.n_ranks) == nullptr || std::strcmp(get(launcher.n_ranks), "1") == 0)) continue;
    const Result<int> rank = number(get, launcher.rank, launcher.name);
    if (!rank.ok()) return rank.status();
    const Result<int> n_ranks = number(get, launcher.n_ranks, launcher.name);
    if (!n_ranks.ok()) return n_ranks.status();
    if (rank.value() < 0 || rank.value() >= n_ranks.value())
      return Status(Code::config, std::string(launcher.rank) + "=" + std::to_string(rank.value()) + " and " +
                                      launcher.n_ranks + "=" + std::to_string(n_ranks.value()) + " (set by " + launcher.name +
                                      "): expected 0 <= rank < size");
    bool elsewhere = srun && several_nodes(get);
    if (launcher.local_ranks != nullptr && get(launcher.local_ranks) != nullptr) {
      const Result<int> here = number(get, launcher.local_ranks, launcher.name);
      if (!here.ok()) return here.status();
      elsewhere = here.value() < n_ranks.value();
    }
    if (elsewhere)
      return Status(Code::unsupported, std::string(launcher.name) + " started ranks on several hosts; this library joins "
                                           "ranks of one. Use ccl_lab.init() of the Python package across hosts");
    Result<std::string> path = meeting_point(get, launcher);
    if (!path.ok()) return path.status();
    return Launch{rank.value(), n_ranks.value(), *path};
  }
  return Status(Code::usage, "no launcher says which rank this process is: start the ranks with torchrun, mpirun or srun, set "
                             "CCL_LAB_RANK, CCL_LAB_WORLD_SIZE and CCL_LAB_RENDEZVOUS, or call join(rank, n_ranks, path)");
}

}  // namespace ccl_lab::api

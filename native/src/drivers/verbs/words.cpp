// Names of states and errors, and what they mean; see verbs.hpp.
#include <arpa/inet.h>

#include "drivers/verbs/verbs.hpp"

namespace ccl_lab::verbs {

namespace {

constexpr const char* kStatusNames[kWcStatuses] = {
    "SUCCESS",          "LOC_LEN_ERR",     "LOC_QP_OP_ERR",      "LOC_EEC_OP_ERR", "LOC_PROT_ERR",      "WR_FLUSH_ERR",
    "MW_BIND_ERR",      "BAD_RESP_ERR",    "LOC_ACCESS_ERR",     "REM_INV_REQ_ERR", "REM_ACCESS_ERR",   "REM_OP_ERR",
    "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
    "INV_EEC_STATE_ERR", "FATAL_ERR",      "RESP_TIMEOUT_ERR",   "GENERAL_ERR"};

constexpr const char* kMeanings[kWcStatuses] = {
    "it went well",
    "a message is longer than its queue pair takes",
    "the queue pair was asked for something it cannot do; do both sides use the same version?",
    "an end-to-end context is inconsistent",
    "the local memory is not registered, or was deregistered or freed under way",
    "the queue pair had failed before: another completion, or an event of its port, says why",
    "a memory window could not be bound",
    "the peer answered with a packet that must not be",
    "the local memory may not be written",
    "the peer's NIC refused the request: it has no receive posted for it, or the operation is switched off",
    "the peer's memory is not registered there, or not for this access; was it deregistered or freed?",
    "the peer's NIC could not complete it",
    "the peer's NIC did not answer any of the tries: its NIC or cable is down, or packets are lost on the way",
    "the peer's software took no messages for too long",
    "a reliable datagram domain is violated",
    "the peer's NIC took the request for a read that must not be",
    "the peer aborted it",
    "an end-to-end context is invalid",
    "an end-to-end context is in the wrong state",
    "the device failed; its driver has to be loaded again",
    "the peer did not respond in time",
    "the device does not say more"};

constexpr const char* kEventNames[kEventTypes] = {
    "CQ_ERR",     "QP_FATAL", "QP_REQ_ERR",  "QP_ACCESS_ERR", "COMM_EST",  "SQ_DRAINED", "PATH_MIG",
    "PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE",
    "SRQ_ERR",    "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL"};

}  // namespace

const char* name(WcStatus status) {
  const auto at = static_cast<int>(status);
  return at < kWcStatuses ? kStatusNames[at] : "an unknown status";
}

const char* meaning(WcStatus status) {
  const auto at = static_cast<int>(status);
  return at < kWcStatuses ? kMeanings[at] : "this version does not know it";
}

const char* name(EventType type) {
  const auto at = static_cast<int>(type);
  return at < kEventTypes ? kEventNames[at] : "an unknown event";
}

std::string text(const Gid& gid) {
  char out[INET6_ADDRSTRLEN] = {};
  const Gid mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, gid[12], gid[13], gid[14], gid[15]};
  if (gid == mapped) ::inet_ntop(AF_INET, gid.data() + 12, out, sizeof out);
  else ::inet_ntop(AF_INET6, gid.data(), out, sizeof out);
  return out;
}

}  // namespace ccl_lab::verbs

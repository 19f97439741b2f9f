// Messages as mail; see virtual_messenger.hpp.
#include "fault/virtual_messenger.hpp"

#include <algorithm>

namespace ccl_lab {

static_assert(kMailBytes == kMessageBytes);

void VirtualMessenger::send(const Datagram& datagram) {
  Mail mail;
  mail.from = rank_;
  mail.to = datagram.peer;
  mail.nic = datagram.nic;
  mail.peer_nic = datagram.peer_nic;
  encode(datagram.message, mail.bytes);
  network_.send(mail);
}

int VirtualMessenger::poll(std::int64_t, std::vector<Datagram>& arrived) {
  mails_.clear();
  int n = 0;
  if (network_.receive(rank_, mails_) == 0) return 0;
  for (const Mail& mail : mails_) {
    const Result<Message> message = decode(mail.bytes.data(), mail.bytes.size());
    if (!message.ok() || message.value().epoch != epoch_) continue;
    arrived.push_back({mail.from, mail.peer_nic, mail.nic, message.value()});
    ++n;
  }
  return n;
}

void VirtualMessenger::wait_set(std::vector<pollfd>&, std::int64_t& wake_ns) const {
  if (network_.has_mail(rank_)) wake_ns = std::min(wake_ns, network_.now_ns());
}

void VirtualMessenger::reset(std::uint16_t epoch) {
  epoch_ = epoch;
  network_.drop_mail(rank_);
}

}  // namespace ccl_lab

// A call whose peers were met, put on the streams; see session.hpp for the order of things.
#pragma once

#include "device/session.hpp"

namespace ccl_lab::device {

// The context is current. After an error part of the call is on the streams: the session is to be given up.
class Launch {
 public:
  Launch(Session& session, const Session::PendingCall& call) : session_(session), call_(call), program_(*call.prepared->program) {}
  Status run();

 private:
  using Neighbour = Session::Neighbour;

  std::size_t bank() const { return call_.captured ? 1 : 0; }
  cuda::CuStream stream(std::size_t channel) const { return session_.streams_[channel].get(); }
  cuda::CuStream first() const { return stream(0); }
  Neighbour& neighbour(std::int32_t rank) const { return session_.neighbours_[static_cast<std::size_t>(rank)]; }
  Neighbour& own() const { return neighbour(session_.rank_); }
  const Page& page() const { return *own().page; }
  std::string what(const Op& op) const;

  Status write(cuda::CuStream on, const Neighbour& where, std::uint64_t flag, std::uint64_t value, const std::string& what) const;
  Status wait(cuda::CuStream on, std::uint64_t flag, std::uint64_t value, const std::string& what) const;
  Status order(const cuda::Event& event, cuda::CuStream before, cuda::CuStream after) const;
  Status copy(cuda::CuStream on, cuda::DevicePtr to, cuda::DevicePtr from, std::uint64_t nbytes, const std::string& what) const;

  Status begin();
  Status ready();
  Status ops();
  Status op(const Op& op, std::uint64_t raised);
  Status put(const Op& op, std::uint64_t raised);
  Status await(const Op& op);
  Status reduce(const Op& op);
  Status join();
  Status end();
  cuda::DevicePtr own_address(Buffer buffer, std::uint64_t offset) const { return call_.base[static_cast<std::size_t>(buffer)] + offset; }
  cuda::DevicePtr peer_address(std::int32_t slot, Buffer buffer, std::uint64_t offset) const {
    return call_.peers[static_cast<std::size_t>(slot)][static_cast<std::size_t>(buffer)] + offset;
  }
  cuda::DevicePtr address(const Source& source) const {
    return source.slot < 0 ? own_address(source.buffer, source.offset) : peer_address(source.slot, source.buffer, source.offset);
  }

  Session& session_;
  const Session::PendingCall& call_;
  const Program& program_;
  bool timed_ = false;
};

}  // namespace ccl_lab::device

// What goes on the streams, op by op; see launch.hpp.
#include "device/launch.hpp"

#include <vector>

namespace ccl_lab::device {

using cuda::CuStream;
using cuda::DevicePtr;

namespace {

const cuda::Api& api_of(const std::shared_ptr<cuda::Context>& context) { return context->api(); }

}  // namespace

std::string Launch::what(const Op& op) const {
  std::string text = "rank " + std::to_string(session_.rank_) + ", channel " + std::to_string(op.channel) + ", op " + std::to_string(op.op_id) +
                     " (" + kKindNames[static_cast<std::size_t>(op.kind)] + ")";
  if (op.peer >= 0) text += " with rank " + std::to_string(op.peer);
  if (op.nbytes > 0) text += ", " + std::to_string(op.nbytes) + " bytes";
  return text;
}

Status Launch::write(CuStream on, const Neighbour& where, std::uint64_t flag, std::uint64_t value, const std::string& what) const {
  const DevicePtr address = where.flags + flag * sizeof(std::uint64_t);
  const cuda::CuResult result = api_of(session_.context_).stream_write(on, address, value, cuda::kWriteDefault);
  return cuda::status_of(api_of(session_.context_), result, "writing a flag: " + what);
}

Status Launch::wait(CuStream on, std::uint64_t flag, std::uint64_t value, const std::string& what) const {
  const DevicePtr address = own().flags + flag * sizeof(std::uint64_t);
  const cuda::CuResult result = api_of(session_.context_).stream_wait(on, address, value, cuda::kWaitGeq);
  return cuda::status_of(api_of(session_.context_), result, "waiting for a flag: " + what);
}

Status Launch::order(const cuda::Event& event, CuStream before, CuStream after) const {
  const cuda::Api& api = api_of(session_.context_);
  cuda::CuResult result = api.event_record(event.get(), before);
  if (result == cuda::kSuccess) result = api.stream_wait_event(after, event.get(), 0);
  return cuda::status_of(api, result, "ordering streams on rank " + std::to_string(session_.rank_));
}

Status Launch::copy(CuStream on, DevicePtr to, DevicePtr from, std::uint64_t nbytes, const std::string& what) const {
  if (nbytes == 0 || to == from) return {};
  return cuda::status_of(api_of(session_.context_), api_of(session_.context_).memory_copy(to, from, nbytes, on), "copying: " + what);
}

Status Launch::run() {
  Status status = begin();
  if (status.ok()) status = ready();
  if (status.ok()) status = ops();
  if (status.ok()) status = join();
  if (status.ok()) status = end();
  return status;
}

Status Launch::begin() {
  timed_ = !call_.captured && session_.timeline_.start(first(), session_.idle(), session_.scheduled_ + 1, call_.coll_id);
  if (!call_.captured) ++session_.scheduled_;
  if (Status status = order(session_.fork_, call_.user, first()); !status.ok()) return status;
  return write(first(), own(), page().begun_flag(bank()), call_.captured ? 1 : session_.scheduled_, "the run begins");
}

// READY to everyone who will touch this rank's memory; then the READYs of those whose memory this rank will touch, all of them
// before the first op: a captured call has to set them back before a peer can say the next one.
Status Launch::ready() {
  Status status;
  for (const ReadyTo& to : program_.ready_to()) {
    Neighbour& peer = neighbour(to.peer);
    const std::uint64_t value = call_.captured ? 1 : ++peer.ready_sent;
    if (status.ok()) status = write(first(), peer, page().ready_flag(bank(), session_.rank_), value, "READY to rank " + std::to_string(to.peer));
  }
  for (const Peer& peer : program_.peers()) {
    const std::uint64_t value = call_.captured ? 1 : ++neighbour(peer.rank).ready_seen;
    if (status.ok()) status = wait(first(), page().ready_flag(bank(), peer.rank), value, "READY of rank " + std::to_string(peer.rank));
  }
  if (!call_.captured) return status;
  for (const Peer& peer : program_.peers())
    if (status.ok()) status = write(first(), own(), page().ready_flag(bank(), peer.rank), 0, "READY set back");
  return status;
}

Status Launch::ops() {
  const cuda::Api& api = api_of(session_.context_);
  Status status;
  if (program_.n_channels() > 1) status = cuda::status_of(api, api.event_record(session_.fork_.get(), first()), "starting channels");
  for (std::size_t c = 1; status.ok() && c < program_.n_channels(); ++c)
    status = cuda::status_of(api, api.stream_wait_event(stream(c), session_.fork_.get(), 0), "starting channel " + std::to_string(c));
  const StreamPlan& plan = call_.prepared->plan;
  for (const std::uint32_t index : plan.order)
    if (status.ok()) status = op(program_.ops()[index], plan.raised[index]);
  // Where every counter will be when all of this has run.
  if (!call_.captured) {
    for (const auto& [key, count] : plan.raises) neighbour(key.first).raised[key.second] += count;
    for (const Counter& counter : program_.counters()) neighbour(counter.peer).counted[counter.sig_channel] += counter.total;
  }
  return status;
}

Status Launch::op(const Op& op, std::uint64_t raised) {
  const bool marked = timed_ && op.kind != Kind::flush && session_.timeline_.begin(stream(op.channel), op);
  Status status;
  switch (op.kind) {
    case Kind::put:
    case Kind::signal: status = put(op, raised); break;
    case Kind::wait: status = await(op); break;
    case Kind::flush: break;  // what a channel enqueued before has left when its stream gets here
    case Kind::get:
    case Kind::copy: {
      const Source& source = program_.sources(op)[0];
      status = copy(stream(op.channel), own_address(op.dst_buffer, op.dst_offset), address(source), op.nbytes, what(op));
      break;
    }
    case Kind::reduce: status = reduce(op); break;
    case Kind::compute: status = Status(Code::internal, "a compute op on a stream"); break;
  }
  if (marked) session_.timeline_.end(stream(op.channel));
  return status;
}

Status Launch::put(const Op& op, std::uint64_t raised) {
  Status status;
  if (op.kind == Kind::put && op.nbytes > 0) {
    const DevicePtr to = op.slot < 0 ? own_address(op.dst_buffer, op.dst_offset) : peer_address(op.slot, op.dst_buffer, op.dst_offset);
    status = copy(stream(op.channel), to, address(program_.sources(op)[0]), op.nbytes, what(op));
  }
  if (!status.ok() || op.sig_channel < 0) return status;
  Neighbour& peer = neighbour(op.peer);
  const std::uint64_t value = raised + (call_.captured ? 0 : peer.raised[op.sig_channel]);
  return write(stream(op.channel), peer, page().signal_flag(bank(), session_.rank_, op.sig_channel), value, what(op));
}

Status Launch::await(const Op& op) {
  const std::uint64_t value = op.value + (call_.captured ? 0 : neighbour(op.peer).counted[op.sig_channel]);
  return wait(stream(op.channel), page().signal_flag(bank(), op.peer, op.sig_channel), value, what(op));
}

Status Launch::reduce(const Op& op) {
  std::vector<DevicePtr> sources;
  for (const Source& source : program_.sources(op)) sources.push_back(address(source));
  const DevicePtr to = own_address(op.dst_buffer, op.dst_offset);
  if (sources.size() == 1) return copy(stream(op.channel), to, sources[0], op.nbytes, what(op));
  const RunIdentity& identity = program_.identity();
  const RedOp redop = identity.redop == RedOp::avg ? RedOp::sum : identity.redop;
  Status status = session_.reducer_.enqueue(stream(op.channel), identity.dtype, redop, to, sources, op.nbytes / itemsize(identity.dtype), 1);
  return status.ok() ? status : Status(status.code, what(op) + ": " + status.message, session_.rank_, -1, op.op_id);
}

Status Launch::join() {
  Status status;
  for (std::size_t c = 1; status.ok() && c < program_.n_channels(); ++c) status = order(session_.joins_[c], stream(c), first());
  if (status.ok() && call_.prepared->plan.divides) {
    const DevicePtr output = own_address(Buffer::output, 0);
    const DevicePtr sources[] = {output};
    status = session_.reducer_.enqueue(first(), program_.identity().dtype, RedOp::avg, output, sources, program_.output_elements(),
                                       program_.n_ranks_avg());
  }
  if (!call_.captured) return status;
  for (const Counter& counter : program_.counters())
    if (status.ok()) status = write(first(), own(), page().signal_flag(bank(), counter.peer, counter.sig_channel), 0, "a counter set back");
  return status;
}

Status Launch::end() {
  Status status = call_.captured ? write(first(), own(), page().begun_flag(bank()), 0, "the replay ends")
                                 : write(first(), own(), page().ended_flag(bank()), session_.scheduled_, "the run ends");
  if (status.ok()) status = order(session_.end_, first(), call_.user);
  return status;
}

}  // namespace ccl_lab::device

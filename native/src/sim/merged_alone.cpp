// Chains of a part that are served one at a time, in a short loop (merged_unit.hpp).
#include <algorithm>
#include <cstdint>

#include "merged_unit.hpp"

namespace ccl_lab::sim {

// Where messages of a chain have one length and no rate changes under them.
void Merged::keep_posts(const Part& part, std::vector<Tape>& sent) {
  posts_.clear();
  for (const std::size_t c : part.chains) {
    const std::size_t r = kind_row(c);
    posts_.push_back({&state_[row(c)], &link(in_.memory[r]), &link(in_.link_a[r]), &link(in_.link_b[r]), &inbox_[c], &sent[c], c,
                      in_.latency_ps[r], in_.ready_ps[r], {}, &in_hand_[c]});
  }
}

// Batches at which one chain alone has anything to do, at most so many, as long as all that are at work go on with what they do: the same
// as serve_alone for each. Returns how many. bound: before which batch no chain without a message comes.
std::int64_t Merged::serve_each_alone(std::int64_t bound, std::int64_t most) {
  at_work_.clear();
  for (Post& post : posts_) {
    const Chain& c = *post.chain;
    if (c.next == Next::message || c.next == Next::nothing) continue;
    if (c.next == Next::reduce && c.message + 1 == in_.steps) return 0;  // the slice ends here, and another one may begin
    post.busy = busy(post.place);
    at_work_.push_back(&post);
  }
  std::int64_t served = 0;
  for (bool goes_on = true; goes_on && served < most && evaluated_ < look_;) {
    Post* first = nullptr;
    std::int64_t earliest = kNever, other = bound;
    for (Post* const post : at_work_) {
      other = std::min(other, std::max(earliest, post->chain->batch));
      if (post->chain->batch >= earliest) continue;
      earliest = post->chain->batch;
      first = post;
    }
    if (earliest >> kPlaceBits >= other >> kPlaceBits) break;
    goes_on = serve_message(*first);
    ++served;
  }
  return served;
}

// What a chain does with a message, and the receiving of the next one; false where it comes to other work then.
bool Merged::serve_message(const Post& post) {
  Chain& c = *post.chain;
  Link &a = *post.a, &b = *post.b;
  if (c.next == Next::reduce) {
    c.clock_ps = post.memory->free_ps = std::max(c.clock_ps, post.memory->free_ps) + post.busy.add_ps;
    c.batch += 1;
  }
  const std::int64_t start = std::max(std::max(c.clock_ps, post.ready_ps), std::max(a.free_ps, b.free_ps));
  a.free_ps = start + post.busy.a_ps;
  b.free_ps = start + post.busy.b_ps;
  c.left_ps = std::max(a.free_ps, b.free_ps);
  const std::int64_t leaves = std::max(c.batch >> kPlaceBits, std::max(a.free_tick, b.free_tick)) + in_.nominal_bytes;
  a.free_tick = b.free_tick = leaves;
  const Seen sent{c.left_ps + post.latency_ps, leaves};
  post.sent->push(sent);
  note_sent(post.place, sent);
  if (fails(c, sent.arrive_ps, leaves)) return false;
  ++c.message;
  c.next = Next::message;
  if (post.inbox->empty() || c.message + 1 == in_.steps) {
    receive(post.place);
    return false;
  }
  const Seen message = post.inbox->next();
  *post.in_hand = message;
  ++evaluated_;
  wait(c, message.arrive_ps, message.leaves, c.batch);
  c.batch += 1;
  c.next = c.message < in_.reducing ? Next::reduce : Next::send;
  return true;
}

}  // namespace ccl_lab::sim

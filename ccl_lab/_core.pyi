# ccl_lab/_core.pyi — the compiled module as Python sees it (nanobind). Errors: native Status -> the class of ccl_lab.errors (code -> ShapeError, OpTimeout, AbortedError, PeerLostError …) with rank/nic/op_id attributes set.
import numpy as np

class Segment:                      # another rank's (or one's own) shared memory, e.g. mapped by the notebook process
    @staticmethod
    def open(pid: int, fd: int) -> "Segment": ...
    rank: int; n_ranks: int; pid: int
    def drain_spans(self, max_spans: int = 65536) -> np.ndarray: ...   # structured SPAN_DTYPE (bytes copied out), consumes
    def dropped_spans(self) -> int: ...
    def abort(self, code: int, reason: str, culprit: int, nic: int = -1) -> bool: ... # first reason wins; True if it was the first
    def set_nic(self, nic: int, bytes_per_s: int, up: bool) -> None: ...
    def set_fault(self, nic: int, kind: str, value: int) -> None: ...  # silent_tx silent_rx unplugged down: 0 or 1; damage: frames; sever: connections; delay_ns jitter_ns; 0 undoes
    def faults(self) -> dict[int, dict[str, dict[str, int]]]: ...      # {nic: {"values": {kind: asked or left}, "hits": {kind: how often it did something}}}
    def set_message_fault(self, kind: str, value: int) -> None: ...    # out-of-band messages of this rank: loss_ppm double_ppm late_ns (at most); 0 undoes
    def message_faults(self) -> dict[str, dict[str, int]]: ...         # {"values": {kind: asked}, "hits": {kind: messages}}
    def arm_trigger(self, point: str, passes: int = 1, rank: int = -1, path: tuple[int, int] = (-1, -1), nic: int = -1, asked: dict[str, int] = ..., signal: int = 0) -> int: ...  # at the n-th pass of a point of the protocol; its number
    def fired_trigger(self, number: int) -> dict | None: ...           # None while it waits; rank, time_ns, did [kind], hits {kind: before}
    def release_trigger(self, number: int) -> dict | None: ...         # calls it off (None), or frees it after it fired
    def nic_counters(self) -> np.ndarray: ...                          # u64[n_nics, 2] tx, rx bytes
    def set_tracing(self, on: bool) -> None: ...
    def status(self) -> dict: ...                                      # coll_id, state (idle running stopped closed), heartbeat_ns, aborted, abort_reason, culprit
    def view(self, offset: int, nbytes: int) -> np.ndarray: ...        # u8 view of arena memory (keeps Segment alive)

class Engine:                       # one rank
    def __init__(self, rank: int, node_of: np.ndarray, *, n_channels: int = 64, n_nics: int = 1, arena_bytes: int = 1 << 36, trace_spans: int = 65536, spin_us: int = 20, transport: str = "auto", ranks_on_host: int = 0, register_buffers: bool = False) -> None: ...
    pid: int; segment_fd: int
    def attach_peer(self, peer: int, pid: int, segment_fd: int) -> None: ...     # same-node peers
    def add_connection(self, peer: int, nic: int, peer_nic: int, index: int, fd: int, generation: int = 0) -> None: ...  # takes over the descriptor
    def use_rdma(self, nics: list[tuple[str, int, int]], *, classes: list[tuple[int, int, int, str]], class_of: list[int], all_to_all: tuple[int, int, int, str], registration: str, timeout: int, retries: int) -> None: ...  # before the first connection: NICs of this node are driven by verbs; (queue pairs, segment bytes, in flight, mode) by class, class_of by rank
    def connected(self, peer: int, nic: int, peer_nic: int) -> bool: ...
    def set_nic(self, nic: int, bytes_per_s: int, up: bool = True) -> None: ...                 # only on the node leader's segment
    def empty(self, nbytes: int) -> tuple[int, np.ndarray]: ...          # (arena offset, u8 array view); memory returns to the arena when the array dies; 64-byte aligned, 4096 for >= 4096
    def arena_offset_of(self, address: int, nbytes: int) -> int: ...     # -1: not registered memory
    def compile(self, arrays: dict[str, object]) -> "Program": ...       # see below; validates everything, raises BoundsError/UsageError
    def start(self, program: "Program", input: "np.ndarray | DeviceView | None", output: "np.ndarray | DeviceView | None", *, coll_id: int, timeout_s: float, compute: "Computation | None" = None, stall: "Stall | None" = None) -> "Work": ...   # with a stall it begins when the stream of a GPU has come to it; contiguous u8 views; registered memory (arena) required; scratch is taken from the arena and cached with the program
    def collective(self, collective: int, x: object, out: object, redop: str, root: int, peer: int, timeout_s: float) -> bool: ...  # the direct way: True once done, False: go the long way
    def admit(self, collective: int, dtype: int, redop: int, root: int, peer: int, block_bytes: int) -> None: ...  # a schedule for such calls was proved
    @property
    def node_complete(self) -> bool: ...                                 # all ranks are on this node, and attached
    def compile_exchange(self, *, plan_hash: int, dtype: int, row_bytes: int, capacity_bytes: int, n_splits: int, group: list[int], nic: list[int], peer_nic: list[int], interleaved: bool) -> "Exchange": ...  # all_to_allv_dynamic of one shape; nic, peer_nic by place in the group
    def start_exchange(self, exchange: "Exchange", send: np.ndarray, receive: np.ndarray, scratch: np.ndarray, lengths: np.ndarray, ids: np.ndarray, blocks: np.ndarray, handles: np.ndarray, *, tag: int, coll_id: int, timeout_s: float, caller_waits: bool) -> "Work": ...  # u8 views (send: any memory), counts i32 or i64, handles u64 by place (empty: peers say where they are); the caller keeps all until it has ended
    window_places: int                                                   # windows that may be open at a time
    def window_signals(self) -> list[int]: ...                           # by place of a window and rank: signals so far
    def shown_offset(self, address: int, nbytes: int) -> int: ...        # offset in the arena of what was taken from it, or of registered whole pages; -1: peers do not reach it
    def make_window(self, number: int, place: int, memory: np.ndarray, parts: list[tuple[int, int]], lanes: list[list[tuple[int, int]]], raised: list[int]) -> "Window": ...  # parts: by rank, (offset in its arena, bytes); lanes: by rank, pairs of NICs, home first; raised: by rank, of window_signals
    def register(self, address: int, nbytes: int) -> None: ...           # ordinary memory that peers may use in place
    def unregister(self, address: int) -> None: ...
    @property
    def registered_bytes(self) -> int: ...
    @property
    def traffic(self) -> tuple[int, int]: ...                            # bytes read and written by node collectives of this rank
    def run(self, program: "Program", input: object, output: object, *, coll_id: int, timeout_s: float, apart: bool = False, compute: "Computation | None" = None) -> tuple[int, int] | None: ...  # start and wait in one call, driven by the calling thread: (begin_ns, end_ns); buffers of any shape and type; None: a buffer is not registered, or, with apart, both are the same memory
    def open_messenger(self, key: bytes, out_of_band: str, nics: list[str], node_of: list[int]) -> list[tuple[str, int]]: ...  # lost paths are repaired from here on; its sockets: out of band, then by NIC
    def set_messenger_peer(self, rank: int, addresses: list[tuple[str, int]]) -> None: ...
    def path_missing(self, peer: int, nic: int, peer_nic: int, why: str) -> None: ...   # could not be connected: tried again as one that was lost
    news_fd: int                                                         # readable when rail_news has something; -1 without a messenger
    def rail_news(self) -> tuple[list[tuple[int, int, int, int]], list[dict[str, object]]]: ...  # (peer, nic, peer_nic, generation) to connect again; what happened
    def rails(self) -> dict[str, object]: ...                            # paths with their state; lost, recovered, resent, duplicates, ignored, back
    def abort(self, code: int, reason: str, culprit: int, nic: int = -1) -> None: ...
    def reset(self, epoch: int) -> None: ...
    def drain_spans(self, max_spans: int = 65536) -> np.ndarray: ...
    def memory(self) -> dict[str, int]: ...                              # arena_used_bytes, arena_peak_bytes, arena_bytes, segment_bytes, attached, connections, programs
    def close(self) -> None: ...                                         # idempotent; stops the progress thread

# compile(arrays): keys: collective u8, dtype u8, redop u8, plan_hash u64, count u64 (elements per block; for the READY check), input_bytes, output_bytes, scratch_bytes, output_elements (for avg), n_ranks_avg,
#  alias: 0 none / 1 input lives in output at alias_offset / 2 output lives in input at alias_offset,  n_channels,
#  op arrays (len = ops of this rank, program order): op_id i32, kind u8, channel i32, peer i32, sig_channel i32, value i64, step i32, dst_buf u8, dst_offset u64, nbytes u64, src_begin i32, src_count i32, nic u16, peer_nic u16, arg i32
#  compute ops: value 1: source 0 is produced, the others are added, to dst; 0: sources are read, no dst; nbytes: of each of them
#  source arrays: src_rank i32, src_buf u8, src_offset u64
#  ready_to i32[]: peers that access this rank's memory or counters (they need our READY); the peers we need READY from follow from the ops.
#  ready_nic u16[], ready_peer_nic u16[]: by ready_to, the NICs that carry READY (may be missing: NIC 0)

class Program: ...
class Exchange:                     # where, in the receive buffer and SCRATCH, what the rank at a place sends will lie
    output_bytes: int; scratch_bytes: int; lengths_in_output: bool
    def data_offset(self, place: int) -> int: ...
    def lengths_offset(self, place: int) -> int: ...                     # tag, its lengths (i64 each), the rows it sent; in the receive buffer or in SCRATCH
class Computation:                  # who does the compute ops of a run; a program that has some is refused without
    @staticmethod
    def emulated(duration_ns: np.ndarray) -> "Computation": ...          # a device that is only a clock: i64 ns by partition; carries
    @staticmethod
    def caller(carries: bool = False) -> "Computation": ...              # the thread that calls next_partition; carries: INPUT holds what partitions produce, the engine adds the other sources and writes the sum
class Window:                       # memory of all ranks, as one of them reaches it
    def put(self, rank: int, data: np.ndarray, offset: int, signals: bool, urgent: bool) -> "WindowOp | None": ...  # u8 view; None: it has ended, or was copied; else the caller keeps it
    def get(self, rank: int, out: np.ndarray, offset: int) -> "WindowOp | None": ...
    def signal(self, rank: int) -> "WindowOp | None": ...
    def flush(self, rank: int) -> "WindowOp | None": ...                 # -1: of all ranks
    def wait(self, rank: int, count: int, timeout_s: float) -> list[int]: ...  # GIL released; takes signals (rank -1: of any), the rank of each; OpTimeout: none was taken
    def count(self, rank: int) -> int: ...
    def close(self) -> None: ...
class WindowOp:
    def wait(self, timeout_s: float = -1.0) -> bool: ...
    def done(self) -> bool: ...
    def failed(self) -> bool: ...
class Work:
    def next_partition(self) -> int: ...                                 # op_id of the compute op to do now, the one before having ended; GIL released; -1: ended; raises the error it ended in
    scratch: np.ndarray | None                                           # u8 view of SCRATCH
    def wait(self, timeout_s: float = -1.0) -> bool: ...                 # GIL released; True when ended; raises the op's error if it failed
    def done(self) -> bool: ...
    def error(self) -> Exception | None: ...
    def cancel(self, reason: str) -> None: ...
    begin_ns: int; end_ns: int

def reduce(dtype: int, redop: int, dst: np.ndarray, srcs: list[np.ndarray], isa: int = -1) -> None: ...     # u8 views; for tests and peers; isa 0 base, 1 AVX2, 2 AVX-512, -1 best
def divide(dtype: int, dst: np.ndarray, divisor: int) -> None: ...    # how an average ends
def now_ns() -> int: ...
def status_codes() -> dict[str, int]: ...                              # class name of ccl_lab.errors -> native status code
def build_info() -> dict: ...

# The simulator. `columns`: numbers and arrays by name, those of the structs in native/src/sim; what is found is written into arrays among them.
# The first number that comes back is a status: 0 ok, else as the header says.
def simulate_exact(rank: np.ndarray, channel: np.ndarray, kind: np.ndarray, peer: np.ndarray, sig_channel: np.ndarray, value: np.ndarray, work_bytes: np.ndarray, nominal_bytes: np.ndarray, hold_ps: np.ndarray, compute_ps: np.ndarray, ready_ps: np.ndarray, request_ps: np.ndarray, link_a: np.ndarray, link_b: np.ndarray, link_ticks: np.ndarray, link_bytes_per_s: np.ndarray, link_latency_ps: np.ndarray, late_ps: np.ndarray, tier_ps: np.ndarray, step: np.ndarray, change_link: np.ndarray, change_ps: np.ndarray, change_bytes_per_s: np.ndarray, times: np.ndarray, level: np.ndarray, finish_ps: np.ndarray) -> tuple[int, int, int]: ...  # exact.hpp: status, op, detail; times i64[5, ops]: begin, end, start, leave, arrive
def simulate_shared(rank: np.ndarray, channel: np.ndarray, kind: np.ndarray, peer: np.ndarray, sig_channel: np.ndarray, value: np.ndarray, work_bytes: np.ndarray, nominal_bytes: np.ndarray, hold_ps: np.ndarray, compute_ps: np.ndarray, ready_ps: np.ndarray, request_ps: np.ndarray, link_a: np.ndarray, link_b: np.ndarray, link_ticks: np.ndarray, link_bytes_per_s: np.ndarray, link_latency_ps: np.ndarray, late_ps: np.ndarray, tier_ps: np.ndarray, step: np.ndarray, job_ops: np.ndarray, route_of: np.ndarray, routes: np.ndarray, times: np.ndarray, level: np.ndarray, finish_ps: np.ndarray) -> tuple[int, int, int]: ...  # sharing.hpp: ops of all jobs, job_ops of each; routes i32[kinds, width], -1: no link
def fair_rates(routes: np.ndarray, flows: np.ndarray, link_bytes_per_s: np.ndarray, again: np.ndarray, out: np.ndarray) -> None: ...  # sharing_rates.hpp: in units of 2^-10 bytes/s; for tests
def simulate_rings(columns: dict[str, object]) -> tuple[int, int, int]: ...     # rings.hpp: status, rounds evaluated, rounds jumped over; into finish_ps, end_ps, end_batch
def simulate_gathers(columns: dict[str, object]) -> bool: ...                   # gathers.hpp: False where columns do not fit; into finish_ps
def simulate_exchanges(columns: dict[str, object]) -> tuple[int, int]: ...       # exchanges.hpp: (status, ranks evaluated); into finish_ps
def simulate_chains(columns: dict[str, object]) -> tuple[int, int, int, int]: ...  # chains.hpp: status, units, units whose times were evaluated, units put in order; into finish_ps
def simulate_trees(columns: dict[str, object]) -> tuple[int, int, int, int]: ...   # trees.hpp: status, kinds of nodes, rounds of nodes and puts evaluated; into finish_ps
def simulate_pairs(columns: dict[str, object]) -> tuple[int, int]: ...          # pairs.hpp: status, turns that were dealt; into arrived_ps, left_ps, places
def simulate_rails(columns: dict[str, object]) -> int: ...                      # rails.hpp; into arrived_ps, left_ps, seen_ps, near_left_ps
def simulate_swaps(columns: dict[str, object]) -> int: ...                      # swaps.hpp; into finish_ps
def simulate_paired(columns: dict[str, object]) -> int: ...                     # paired.hpp; into finish_ps
def simulate_partners(columns: dict[str, object]) -> tuple[int, int, int]: ...  # partners.hpp; into finish_ps; (status, puts, those that took turns)
def vector_targets() -> list[int]: ...                                          # vectors.hpp: what `target` of pairs, rails and exchanges may be on this processor, besides 0, the best
def order_meeting_puts(columns: dict[str, object]) -> int: ...                  # meeting_puts.hpp: in which order NICs serve puts; into order
def serve_meeting_puts(columns: dict[str, object]) -> int: ...                  # puts in that order; into tx, rx, left
def pass_meeting_times_along(columns: dict[str, object]) -> int: ...            # a few messages that pass all nodes; into clock, tx, rx, came
def pass_meeting_batches_along(columns: dict[str, object]) -> int: ...          # their batches; into batch, free, came
def sweep_meeting_times(columns: dict[str, object]) -> int: ...                 # meetings.hpp: messages that go from node to node; into clock, tx, rx, came
def sweep_meeting_batches(columns: dict[str, object]) -> int: ...               # their batches; into batch, free, came
def serve_fabrics(columns: dict[str, object]) -> int: ...                       # puts inside nodes, their order or what is ready; into next, tx_ps, rx_ps, left_ps, seen_ps
class Flow:                         # flow.hpp: ops timed as they are told
    def __init__(self, columns: dict[str, object]) -> None: ...
    def run(self, kind: int, rank: np.ndarray, channel: np.ndarray, peer: np.ndarray, sig_channel: np.ndarray, value: np.ndarray, chunk: np.ndarray, n_chunks: np.ndarray, sources: int, ready_ps: np.ndarray, tier_ps: np.ndarray, step: np.ndarray, times: np.ndarray) -> int: ...  # i32, one row an op; ready_ps, tier_ps i64 and times i32 may be empty
    def close(self, rank: np.ndarray, channel: np.ndarray) -> int: ...   # i32: nothing more is told of these
    def finish(self, finish_ps: np.ndarray) -> int: ...                  # all is told: raises finish_ps to the end of each rank
    ops: int

def rdma_nics_of(addresses: list[str]) -> list[tuple[str, int, int]]: ...  # (device, port, index of the GID) that has each address; UnsupportedError with what there is
def rdma_library() -> None: ...                                          # loads libibverbs; UnsupportedError naming what is missing
def rdma_takes_dma_bufs(device: str) -> None: ...                        # ok where memory of GPUs can be registered with it; UnsupportedError naming what is missing
def rdma_spread(reach: str) -> dict[str, object]: ...                    # qps, segment_bytes, inflight, mode: same_rack, same_zone, cross_zone, cross_building or all_to_all

class DevicePage:                   # what a rank shows the ranks of its node about its GPU; costs nothing before a GPU is used
    def __init__(self, rank: int, n_ranks: int, n_signals: int) -> None: ...
    fd: int
    def clear(self) -> None: ...                                         # for a new epoch; nobody may use it

class DeviceSession:                # collectives of one rank over memory of its GPU
    def __init__(self, engine: Engine, page: DevicePage, peers: list[tuple[int, int, int]], ordinal: int, timeout_s: float, library: str = "") -> None: ...  # peers: (rank, pid, descriptor of its page)
    ordinal: int
    def call(self, program: Program, input: int, output: int, stream: int, *, coll_id: int, timeout_s: float) -> int: ...  # addresses, 0: none; the run's number, 0: captured. Returns when it is on the streams
    def wait(self, number: int, timeout_s: float = -1.0) -> bool: ...
    def ended(self, number: int) -> bool: ...
    def close(self) -> None: ...                                         # when what is on the streams is through; idempotent
    def check(self) -> None: ...                                         # raises why the session ended, if it did
    def await_failure(self, timeout_s: float) -> bool: ...               # True once it has failed
    def memory(self) -> dict[str, int]: ...

class Stall: ...                    # what holds a collective until a stream of a GPU has come to it

class Hold(Stall):                  # a run of a stage
    number: int
    def give_up(self, code: int, why: str, rank: int) -> None: ...       # the collective will not be run: the stage has failed, its stream goes on

class DeviceStage:                  # collectives of the host on memory of a GPU, through pinned memory, in the order of a stream
    def __init__(self, engine: Engine, ordinal: int, timeout_s: float, library: str = "") -> None: ...
    ordinal: int
    pinned_bytes: int
    def pin(self, address: int, nbytes: int) -> None: ...                # whole pages of the host; their owner keeps them until close()
    def hold(self, into_host: list[tuple[int, int, int, str]], from_host: list[tuple[int, int, int, str]], stream: int, kept: list[tuple[int, int, int, str]] = [], by_nics: bool = False) -> Hold: ...  # copies to the host, the hold, copies back: (device, host, bytes, what); kept: copies on the GPU before, (to, from, bytes, what); by_nics: NICs use memory of the GPU meanwhile
    def ended(self, number: int) -> bool: ...
    def wait(self, number: int, timeout_s: float = -1.0) -> bool: ...    # False where the time passed before
    def check(self) -> None: ...                                         # raises why the stage failed, if it did
    def await_failure(self, timeout_s: float) -> bool: ...               # True once it has failed
    def close(self) -> bool: ...                                         # False where the stream was not through in time, and may still use what it was given

class DeviceView: ...               # memory of a GPU as Engine.start takes it: registered with the NICs

class DirectMemory:                 # memory of a GPU that NICs read and write themselves, by its dma-bufs
    def __init__(self, engine: Engine, ordinal: int, library: str = "") -> None: ...
    forwards: bool
    n_regions: int
    def find(self, address: int, nbytes: int, what: str, quiet: bool) -> DeviceView: ...        # registers the allocation, unless it is; UnsupportedError: no NIC can have it, and why; quiet: no run is under way, what was freed may be deregistered
    def close(self) -> None: ...

class DeviceReducer:                # the reduction kernels of this build on one GPU
    def __init__(self, library: str, ordinal: int) -> None: ...
    def run(self, dtype: int, redop: int, target: int, sources: list[int], count: int, stream: int) -> None: ...  # target = sources[0] (+) sources[1] ...: addresses of the GPU

def device_driver(library: str = "") -> dict[str, object]: ...           # version, gpus: [{ordinal, name, uuid, memory_bytes, capability, multiprocessors, copy_engines, stream_memory_ops, posix_handles, reaches}]; UnsupportedError
def device_kernels() -> str: ...                                         # "sm_80 sm_90 sm_100 and PTX, by nvcc 13.0"; empty in a build without nvcc

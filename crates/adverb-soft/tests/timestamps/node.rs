//! A NIC with one queue pair, whose completions have timestamps.

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use adverb_proto::types::{
    Access, Destination, PathMtu, RecvRequest, Segment, SendFlags, SendOperation, SendRequest, Transport,
};
use adverb_proto::{Cq, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_soft::{Nic, NicOptions};
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, Qpn, RnrTimer};

const TEST_DEADLINE: Duration = Duration::from_secs(60);
const QKEY: u32 = 0x1111;
const LENGTH: usize = 4096;

pub(crate) struct Node {
    pub(crate) nic: Nic,
    pub(crate) cq: Cq,
    pub(crate) qpn: Qpn,
    words: Vec<AtomicU64>,
    key: u32,
    transport: Transport,
}

impl Node {
    pub(crate) fn new(transport: Transport, options: NicOptions) -> Node {
        Node::with_timestamps(transport, options, true)
    }

    /// Creates a node whose completions have timestamps or not.
    pub(crate) fn with_timestamps(transport: Transport, options: NicOptions, has_timestamps: bool) -> Node {
        let nic = Nic::open(options.mtu(PathMtu::Mtu1024)).unwrap();
        let pd = nic.create_domain().unwrap();
        let cq = match has_timestamps {
            true => nic.create_timed_cq(256, None).unwrap(),
            false => nic.create_cq(256, None).unwrap(),
        };
        let qpn = nic.create_qp(QpConfig::new(transport, pd, cq, cq)).unwrap();
        let words: Vec<AtomicU64> = (0..LENGTH / 8).map(|_| AtomicU64::new(0)).collect();
        let area = NonNull::from(words.as_slice()).cast::<u8>();
        let addr = area.as_ptr().addr() as u64;
        // SAFETY: the NIC, which is dropped first, is the only one to access the memory.
        let key = unsafe { nic.register(pd, area, LENGTH, addr, Access::LOCAL_WRITE) }.unwrap();
        Node { nic, cq, qpn, words, key, transport }
    }

    pub(crate) fn addr(&self) -> IpAddr {
        self.nic.addresses()[0]
    }

    fn path(&self, peer: &Node) -> Path {
        let port = Path::source_port_between(self.qpn, peer.qpn);
        self.nic.path(self.addr(), peer.addr(), port).unwrap()
    }

    /// Connects the queue pair, or makes it ready for datagrams.
    pub(crate) fn connect(&self, peer: &Node) {
        let psn = Psn::wrapping(0);
        let (init, receiving) = match self.transport {
            Transport::Ud => (Init::datagrams(QKEY), Transition::ReadyToReceiveUd),
            _ => {
                let receiving = ReadyToReceive {
                    remote_qpn: peer.qpn,
                    path: self.path(peer),
                    path_mtu: PathMtu::Mtu1024,
                    psn,
                    max_dest_rd_atomic: 1,
                    min_rnr_timer: RnrTimer::new(1).unwrap(),
                };
                (Init::new(Access::empty()), Transition::ReadyToReceive(receiving))
            }
        };
        let sending = ReadyToSend {
            psn,
            timeout: Timeout::new(18).unwrap(),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
        };
        self.nic.modify_qp(self.qpn, &Transition::Init(init)).unwrap();
        self.nic.modify_qp(self.qpn, &receiving).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToSend(sending)).unwrap();
    }

    pub(crate) fn post_recv(&self) {
        let addr = self.words.as_ptr().addr() as u64;
        let segments = [Segment { addr, length: LENGTH as u32, lkey: self.key }];
        self.nic.post_recvs(self.qpn, [RecvRequest { wr_id: 1, tag: 0, segments: &segments }]).unwrap();
    }

    /// Posts a message.
    pub(crate) fn post_send(&self, peer: &Node, bytes: &[u8]) {
        self.post_sends(peer, bytes, 1);
    }

    /// Posts a message `count` times, in one batch.
    pub(crate) fn post_sends(&self, peer: &Node, bytes: &[u8], count: usize) {
        let destination = (self.transport == Transport::Ud).then(|| Destination {
            handle: self.path(peer),
            qpn: peer.qpn,
            qkey: QKEY,
        });
        let request = || SendRequest {
            wr_id: 2,
            tag: 0,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            segments: &[],
            destination,
        };
        let requests = std::iter::repeat_with(|| (request(), Some(bytes))).take(count);
        self.nic.post_sends(self.qpn, requests).unwrap();
    }

    /// Returns the timestamp of the next completion, if there is one.
    pub(crate) fn try_completion(&self) -> Option<Instant> {
        let mut stamp = None;
        self.nic.poll_timed(self.cq, 1, |completion, time| {
            assert!(completion.outcome.is_ok(), "{:?}", completion.outcome);
            let time = time.expect("the completion has no timestamp");
            stamp = Some(self.nic.clock_origin() + Duration::from_nanos(time.time.as_nanos()));
        });
        stamp
    }

    /// Waits for this many completions, and ignores them.
    pub(crate) fn await_completions(&self, count: usize) {
        let mut polled = 0;
        while polled < count {
            polled +=
                self.nic.poll(self.cq, count - polled, |completion| assert!(completion.outcome.is_ok()));
        }
    }

    /// Waits for the next completion, and returns its timestamp.
    pub(crate) fn completion(&self) -> Instant {
        let start = Instant::now();
        loop {
            if let Some(stamp) = self.try_completion() {
                return stamp;
            }
            assert!(start.elapsed() < TEST_DEADLINE, "no completion");
            std::thread::yield_now();
        }
    }
}

/// Returns the distance of a time from an interval.
pub(crate) fn distance(time: Instant, (first, last): (Instant, Instant)) -> Duration {
    first.saturating_duration_since(time).max(time.saturating_duration_since(last))
}

//! A queue pair with registered memory.

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_proto::memory::Pd;
use adverb_proto::types::{
    Access, Completion, Destination, PathMtu, QpState, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, Transport,
};
use adverb_proto::{Cq, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_sim::MemoryRange;
use adverb_soft::Nic;
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, Qpn, RnrTimer};

use super::Outcome;

/// The number of registered bytes of an end.
pub(super) const MEMORY_LEN: usize = 8 << 10;

/// The maximum time of an operation of the well-behaved pair, on a machine under load.
pub(super) const OPERATION_DEADLINE: Duration = Duration::from_secs(30);

/// A queue pair with its own completion queue and memory.
pub(super) struct End {
    pub(super) nic: Arc<Nic>,
    pub(super) qpn: Qpn,
    pub(super) transport: Transport,
    pd: Pd,
    cq: Cq,
    key: u32,
    words: Vec<AtomicU64>,
}

impl End {
    pub(super) fn new(nic: &Arc<Nic>, transport: Transport) -> Outcome<End> {
        let pd = nic.create_domain().map_err(|error| format!("no domain: {error}"))?;
        let cq = nic.create_cq(256, None).map_err(|error| format!("no completion queue: {error}"))?;
        let qpn = nic.create_qp(QpConfig::new(transport, pd, cq, cq));
        let qpn = qpn.map_err(|error| format!("no queue pair: {error}"))?;
        let words: Vec<AtomicU64> = (0..MEMORY_LEN / 8).map(|_| AtomicU64::new(0)).collect();
        let area = NonNull::from(words.as_slice()).cast::<u8>();
        // A software NIC's memory doesn't survive a power loss.
        let access = Access::LOCAL_WRITE | Access::REMOTE.difference(Access::FLUSH_PERSISTENT);
        // SAFETY: the memory is deregistered before it is freed, and this process accesses it only as atomics.
        let key = unsafe { nic.register(pd, area, MEMORY_LEN, area.as_ptr().addr() as u64, access) };
        let key = key.map_err(|error| format!("no region: {error}"))?;
        Ok(End { nic: Arc::clone(nic), qpn, transport, pd, cq, key, words })
    }

    pub(super) fn memory_range(&self) -> MemoryRange {
        MemoryRange { addr: self.addr(), length: MEMORY_LEN as u64, rkey: self.key }
    }

    fn addr(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    pub(super) fn remote(&self) -> RemoteAddress {
        RemoteAddress { addr: self.addr(), rkey: self.key }
    }

    pub(super) fn segment(&self, length: usize) -> Segment {
        Segment { addr: self.addr(), length: length as u32, lkey: self.key }
    }

    /// Fills the memory with words that are derived from `number`.
    pub(super) fn fill(&self, number: u64) {
        for (word, value) in self.words.iter().zip(number..) {
            word.store(value.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        }
    }

    pub(super) fn store(&self, value: u64) {
        self.words[0].store(value, Ordering::Relaxed);
    }

    pub(super) fn word(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Relaxed)
    }

    /// Returns an error if the first `length` bytes of both ends differ.
    pub(super) fn ensure_equal(&self, other: &End, length: usize) -> Outcome<()> {
        match (0..length / 8).find(|index| self.word(*index) != other.word(*index)) {
            None => Ok(()),
            Some(index) => {
                Err(format!("word {index}: {:#x} isn't {:#x}", self.word(index), other.word(index)))
            }
        }
    }

    fn modify(&self, transition: Transition) -> Outcome<()> {
        let modified = self.nic.modify_qp(self.qpn, &transition);
        modified.map_err(|error| format!("{} can't change its state: {error}", self.qpn))
    }

    pub(super) fn reset(&self) -> Outcome<()> {
        self.modify(Transition::Reset)
    }

    pub(super) fn init(&self) -> Outcome<()> {
        self.modify(Transition::Init(Init::new(Access::LOCAL_WRITE | Access::REMOTE)))
    }

    pub(super) fn move_to_rts(&self, receiving: ReadyToReceive, sending: ReadyToSend) -> Outcome<()> {
        self.modify(Transition::ReadyToReceive(receiving))?;
        self.modify(Transition::ReadyToSend(sending))
    }

    /// Connects the queue pair, which must be in the reset state, to one at another address.
    pub(super) fn connect(&self, local: IpAddr, remote: IpAddr, remote_qpn: Qpn, psn: Psn) -> Outcome<()> {
        self.init()?;
        let port = Path::source_port_between(self.qpn, remote_qpn);
        let path = self.nic.path(local, remote, port).ok_or("no path")?;
        let receiving = ReadyToReceive {
            remote_qpn,
            path,
            path_mtu: PathMtu::Mtu1024,
            psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(1).ok_or("no RNR timer")?,
        };
        let timeout = Timeout::new(17).ok_or("no timeout")?;
        self.move_to_rts(
            receiving,
            ReadyToSend { psn, timeout, retry_count: 7, rnr_retry: 7, max_rd_atomic: 4 },
        )
    }

    /// Moves a UD queue pair to RTS.
    pub(super) fn start_datagrams(&self, qkey: u32) -> Outcome<()> {
        self.modify(Transition::Init(Init::datagrams(qkey)))?;
        self.modify(Transition::ReadyToReceiveUd)?;
        self.modify(Transition::ReadyToSend(ReadyToSend::unreliable(Psn::ZERO)))
    }

    pub(super) fn state(&self) -> Option<QpState> {
        self.nic.query_qp(self.qpn).map(|status| status.state)
    }

    /// Posts a receive for up to `length` bytes. Returns whether the queue pair, which may be under attack, accepted
    /// it.
    pub(super) fn post_recv(&self, wr_id: u64, length: usize) -> bool {
        let segments = [self.segment(length)];
        self.nic.post_recvs(self.qpn, [RecvRequest { wr_id, tag: 0, segments: &segments }]).is_ok()
    }

    /// Posts a request for `length` bytes. Returns whether the queue pair, which may be under attack, accepted it.
    pub(super) fn post(
        &self,
        wr_id: u64,
        operation: SendOperation,
        length: usize,
        destination: Option<Destination<Path>>,
    ) -> bool {
        let segments = [self.segment(length)];
        let flags = SendFlags::SIGNALED;
        let request = SendRequest { wr_id, tag: 0, operation, flags, segments: &segments, destination };
        self.nic.post_sends(self.qpn, [(request, None)]).is_ok()
    }

    /// Returns the next completion, if there is one.
    pub(super) fn poll(&self) -> Option<Completion> {
        let mut found = None;
        self.nic.poll(self.cq, 1, |completion| found = Some(completion));
        found
    }

    /// Waits for the completion of a request, which must have succeeded.
    pub(super) fn wait_for(&self, wr_id: u64, operation: &str) -> Outcome<()> {
        let start = Instant::now();
        loop {
            match self.poll() {
                Some(completion) if completion.wr_id == wr_id && completion.outcome.is_ok() => return Ok(()),
                Some(completion) => return Err(format!("{operation}: {completion:?}")),
                None if start.elapsed() > OPERATION_DEADLINE => {
                    return Err(format!("{operation} didn't complete in {OPERATION_DEADLINE:?}"));
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.nic.destroy_qp(self.qpn);
        if self.nic.deregister(self.key).is_err() {
            // The NIC may still access the memory.
            std::mem::forget(std::mem::take(&mut self.words));
        }
        _ = self.nic.destroy_cq(self.cq);
        _ = self.nic.destroy_domain(self.pd);
    }
}

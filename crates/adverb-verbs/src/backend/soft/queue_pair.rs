//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::{Qpn, SendRequest, Transport};
use adverb_proto::{self as proto, AddressVector, Path, QpConfig, Transition};
use adverb_soft::MAX_INLINE;
use adverb_wire::cm::Timeout;
use adverb_wire::{DEFAULT_PKEY, RnrTimer};
use parking_lot::Mutex;

use super::address_handle::OpenPath;
use super::query::AppliedAttributes;
use super::request_list::{RecvList, SendList, post_result};
use super::{CompletionQueue, ProtectionDomain, nic_error};
use crate::backend::{self, PeerEnd, PostErrno, QueuePairLimits, QueuePairOptions, ReadyToSend, StateChange};
use crate::error::{Error, Limit, Result};

pub(crate) struct QueuePair {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) qpn: Qpn,
    transport: Transport,
    destroyed: AtomicBool,
    /// The attributes that were set, for queries.
    pub(super) applied: Mutex<AppliedAttributes>,
    // The queues exist as long as the queue pair, whose requests complete into them.
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    _shared: Option<Arc<backend::SharedReceiveQueue>>,
}

impl QueuePair {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
        shared: Option<&Arc<backend::SharedReceiveQueue>>,
        options: &QueuePairOptions,
    ) -> Result<(QueuePair, QueuePairLimits)> {
        let device = &domain.device;
        let shared = match shared.map(|shared| (shared, &**shared)) {
            None => None,
            Some((shared, backend::SharedReceiveQueue::Soft(queue))) => Some((shared, queue)),
            #[cfg(feature = "ibv")]
            Some(_) => return Err(backend::device_mismatch()),
        };
        if [send_cq, recv_cq].iter().any(|queue| !Arc::ptr_eq(&queue.device, device))
            || shared.is_some_and(|(_, queue)| !Arc::ptr_eq(&queue.domain.device, device))
        {
            return Err(backend::device_mismatch());
        }
        if options.inline > MAX_INLINE {
            let (requested, max) = (options.inline.into(), MAX_INLINE.into());
            return Err(Error::LimitExceeded { limit: Limit::InlineData, requested, max });
        }
        let mut config = QpConfig::new(options.transport, domain.pd, send_cq.cq, recv_cq.cq);
        config.srq = shared.map(|(_, queue)| queue.srq);
        config.max_send_wr = options.send_depth;
        config.max_recv_wr = options.recv_depth;
        config.max_send_sge = options.send_segments;
        config.max_recv_sge = options.recv_segments;
        config.max_inline = options.inline;
        config.congestion = device.congestion;
        let action = || format!("creating a {} queue pair on {}", options.transport, device.name);
        let qpn = device.nic.create_qp(config).map_err(|error| nic_error(Call::Create, error, action()))?;
        let limits = QueuePairLimits {
            send_segments: options.send_segments,
            recv_segments: options.recv_segments,
            inline: options.inline,
        };
        let queue_pair = QueuePair {
            domain: Arc::clone(domain),
            qpn,
            transport: options.transport,
            destroyed: AtomicBool::new(false),
            applied: Mutex::default(),
            _send_cq: Arc::clone(send_cq),
            _recv_cq: Arc::clone(recv_cq),
            _shared: shared.map(|(shared, _)| Arc::clone(shared)),
        };
        Ok((queue_pair, limits))
    }

    pub(in crate::backend) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(in crate::backend) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// Returns an error if the queue pair was destroyed early.
    pub(super) fn check_not_destroyed(&self) -> Result<()> {
        if self.is_destroyed() {
            return Err(backend::queue_pair_destroyed());
        }
        Ok(())
    }

    pub(in crate::backend) fn modify(&self, change: &StateChange) -> Result<()> {
        self.check_not_destroyed()?;
        let mut open_path = None;
        let (transition, state_name) = match change {
            StateChange::Reset => (Transition::Reset, "reset"),
            StateChange::Init(init) => {
                self.domain.device.check_port(init.port)?;
                let (access, qkey) = (init.access, init.qkey);
                (Transition::Init(adverb_proto::Init { access, pkey: DEFAULT_PKEY, qkey }), "init")
            }
            StateChange::ReadyToReceive(ready) => {
                let transition = match &ready.connection {
                    None => Transition::ReadyToReceiveUd,
                    Some(connection) => {
                        let port = Path::source_port_between(self.qpn, connection.qpn);
                        let path = OpenPath::new(&self.domain.device, &connection.address, port)?;
                        let ready = self.ready_to_receive(connection, open_path.insert(path).path)?;
                        Transition::ReadyToReceive(ready)
                    }
                };
                (transition, "ready to receive")
            }
            StateChange::ReadyToSend(ready) => {
                (Transition::ReadyToSend(ready_to_send(ready, self.transport)?), "ready to send")
            }
            StateChange::Access(access) => (Transition::ModifyAccess(*access), "ready to send"),
            StateChange::Error => (Transition::Error, "error"),
        };
        let device = &self.domain.device;
        let modified = device.nic.modify_qp(self.qpn, &transition);
        modified.map_err(|error| {
            nic_error(
                Call::ModifyQueuePair,
                error,
                format!("moving queue pair {} of {} to “{state_name}”", self.qpn, device.name),
            )
        })?;
        self.applied.lock().record(change, open_path);
        Ok(())
    }

    fn ready_to_receive(&self, connection: &PeerEnd, path: Path) -> Result<proto::ReadyToReceive> {
        if self.transport != Transport::Rc {
            return Ok(proto::ReadyToReceive::unreliable(
                connection.qpn,
                path,
                connection.mtu,
                connection.psn,
            ));
        }
        Ok(proto::ReadyToReceive {
            remote_qpn: connection.qpn,
            path,
            path_mtu: connection.mtu,
            psn: connection.psn,
            max_dest_rd_atomic: connection.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(connection.min_rnr_timer)
                .ok_or_else(|| invalid_code("min_rnr_timer"))?,
        })
    }

    // Posting and polling are cold, so that the compiler doesn't inline them into the path that posts to hardware, where
    // every instruction counts.
    /// Posts one request.
    #[cold]
    #[inline(never)]
    pub(in crate::backend) fn post_send(&self, request: SendRequest<'_, ()>) -> Result<(), PostErrno> {
        self.post([request]).1
    }

    /// Posts requests with one doorbell.
    #[cold]
    #[inline(never)]
    pub(in crate::backend) fn post_sends(&self, list: &mut SendList) -> Result<(), PostErrno> {
        let (posted_count, posted) = self.post(list.requests());
        list.posted_count = posted_count;
        posted
    }

    #[inline]
    fn post<'a, Handle: AddressVector>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'a, Handle>>,
    ) -> (usize, Result<(), PostErrno>) {
        // SAFETY: the memory of inline requests is readable while they are posted: safe requests own or borrow it, and
        // the caller of `post_raw_sends` guarantees it. It is registered memory, or memory to which no thread writes.
        post_result(unsafe { self.domain.device.nic.post_sends_and_copy(self.qpn, requests) })
    }

    #[cold]
    #[inline(never)]
    pub(in crate::backend) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        let (posted_count, posted) =
            post_result(self.domain.device.nic.post_recvs(self.qpn, list.requests()));
        list.posted_count = posted_count;
        posted
    }

    pub(in crate::backend) fn destroy(&self) -> Result<()> {
        if self.domain.device.is_owned() && !self.destroyed.swap(true, Ordering::Relaxed) {
            self.domain.device.nic.destroy_qp(self.qpn);
            self.applied.lock().close_path();
        }
        Ok(())
    }
}

fn ready_to_send(ready: &ReadyToSend, transport: Transport) -> Result<proto::ReadyToSend> {
    if transport != Transport::Rc {
        return Ok(proto::ReadyToSend::unreliable(ready.psn));
    }
    Ok(proto::ReadyToSend {
        psn: ready.psn,
        timeout: Timeout::new(ready.timeout).ok_or_else(|| invalid_code("timeout"))?,
        retry_count: ready.retry_count,
        rnr_retry: ready.rnr_retry,
        max_rd_atomic: ready.max_rd_atomic,
    })
}

/// Returns the error of an attribute with an invalid code.
fn invalid_code(attribute: &'static str) -> Error {
    Error::InvalidRequest { reason: format!("{attribute} must be a code from 0 to 31").into() }
}

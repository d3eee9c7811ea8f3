//! Events of calls.

use std::time::Duration;

use adverb_cluster_proto::PeerId;
use adverb_cluster_proto::rpc::{CallError, CallId};

use super::Reply;
use crate::Event;

/// An event, which [`Rpc::poll`](super::Rpc::poll) passes to the handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum RpcEvent<'a> {
    /// A peer calls this member.
    Request {
        /// The caller.
        from: PeerId,
        /// The method.
        method: u16,
        /// The data, in the receive slot. The slot is posted again when the handler returns.
        bytes: &'a [u8],
        /// The time until the caller stops waiting, measured from when it sent the request.
        timeout: Option<Duration>,
        /// The right to answer, which the handler uses, keeps for later, or drops.
        reply: Reply,
    },
    /// A call of this member ended. A call that was [cancelled](super::Rpc::cancel) has no event.
    CallEnded {
        /// The call.
        call: CallId,
        /// The data of the reply, in the receive slot, or the reason why there is none.
        result: Result<&'a [u8], CallError>,
    },
    /// An event of the broker other than a message. The calls of a session end before [`Event::SessionEnded`].
    Broker(Event<'a>),
}

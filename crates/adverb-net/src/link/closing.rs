//! How a connection ends, so that both sides know that the other has all.
//!
//! Who closes says that it is gone, and stays until the peer's device has acknowledged that. The peer finds it, and could
//! destroy its queue pair; but the acknowledgement may have been lost, and then there would be nobody to give another. So who
//! is gone says farewell when it has what it waits for, and the peer lingers until it hears that. The farewell itself may be
//! lost: then the peer lingers for as long as the other might have asked, and no longer.

use std::time::Duration;

use adverb_verbs::Result;

use super::progress::{has_room, without_bytes};
use super::{FAREWELL, Link, Ready, State};
use crate::protocol::Immediate;

/// What was said last.
#[derive(Default)]
pub(super) struct Farewell {
    /// Whether this side said it, and whether the peer's device has it.
    is_said: bool,
    pub(super) is_known: bool,
    /// Whether the peer said it.
    pub(super) has_come: bool,
}

/// For how long who finds that the peer is gone stays for its farewell: as long as the peer asks whether all has come.
const LINGER: Duration = Duration::from_secs(2);
/// For how long who says farewell waits for its acknowledgement: it needn't have it, but is to have sent it.
const PARTING: Duration = Duration::from_millis(20);

impl Link {
    /// Tells the peer that this side is gone, with `ready`, unless the peer is; then waits until the peer has all.
    pub(crate) fn close(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<()>> {
        if !state.peer_is_gone && ready.is_some() && self.try_send(state, ready)?.is_none() {
            return Ok(None);
        }
        // Who is alone has nobody to tell that it is gone.
        let is_over = state.is_known_gone || state.peer_is_gone || state.end.is_some();
        self.is_delivered(state, is_over)
    }

    /// Says that nothing more is sent, unless that was said.
    fn end_sending(&self, state: &mut State) -> Result<Option<()>> {
        if state.is_shut || state.peer_is_gone {
            return Ok(Some(()));
        }
        Ok(self.try_send(state, &mut Some(Link::end_frame()))?.map(drop))
    }

    /// Says that nothing more is sent, unless that was said; then waits until that is posted, and all before it.
    pub(crate) fn send_end(&self, state: &mut State) -> Result<Option<()>> {
        if self.end_sending(state)?.is_none() {
            return Ok(None);
        }
        self.is_flushed(state)
    }

    /// Says that nothing more is sent, unless that was said, and waits until the peer's device has all that was.
    pub(crate) fn end_stream(&self, state: &mut State) -> Result<Option<()>> {
        if !state.is_shut && state.end.is_some() && state.peer_is_shut {
            // There is nobody to tell.
            return self.is_delivered(state, true);
        }
        if self.end_sending(state)?.is_none() {
            return Ok(None);
        }
        // A peer that had nothing more to say may leave without having heard the same from here.
        let has_left = state.peer_is_gone || state.peer_is_shut && state.end.is_some();
        self.is_delivered(state, state.is_known_shut || has_left)
    }

    /// Whether the peer has all that was sent, and either has read it or `is_over`.
    fn is_delivered(&self, state: &mut State, is_over: bool) -> Result<Option<()>> {
        let is_all_sent = state.batch.is_none() && !state.resume.is_behind();
        if is_all_sent && state.offers.is_empty() && state.reads_to_tell == 0 {
            // What the peer has read it has, though its device's word for it may not have come.
            let is_read = state.outbound.as_ref().is_some_and(|ring| ring.outbound.is_read());
            if is_read || state.delivered == state.to_deliver && is_over {
                return Ok(Some(()));
            }
        }
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        if state.is_unheard {
            self.ask(state);
        }
        Ok(None)
    }

    /// Whether there is anything to be said to the peer before the connection goes.
    pub(crate) fn is_open(&self, state: &State) -> bool {
        state.end.is_none() && !state.is_gone
    }

    /// For how long to wait until both sides [have parted](Link::has_parted), if they haven't and it matters.
    pub(crate) fn lingers(&self) -> Option<Duration> {
        let mut state = self.lock();
        if let Ok(Some(())) = self.has_parted(&mut state) {
            return None;
        }
        Some(if waits_for_farewell(&state) { LINGER } else { PARTING })
    }

    /// Says farewell when the peer knows that this side is gone. Whether that has come, and the peer's, if it is gone.
    pub(crate) fn has_parted(&self, state: &mut State) -> Result<Option<()>> {
        if state.is_known_gone
            && !state.farewell.is_said
            && has_room(state)
            && let Some(memory) = state.outbound.as_ref().map(|ring| ring.memory)
            && state.end.is_none()
        {
            state.farewell.is_said = true;
            self.post(state, without_bytes(&memory, Immediate::Farewell).tag(FAREWELL), true);
        }
        let is_over = state.end.is_some() || state.resume.is_down();
        let has_said = !state.is_gone || state.farewell.is_known;
        Ok((is_over || has_said && !waits_for_farewell(state)).then_some(()))
    }
}

/// Whether the peer is gone, and may not know that this side knows.
fn waits_for_farewell(state: &State) -> bool {
    state.peer_is_gone && !state.farewell.has_come
}

//! The log of a run, which helps to find the cause of a violation.

use adverb_net_proto::{Completed, Event, Frame, FrameKind, Hello, Post};

use super::pair::Action;

pub(super) fn name(side: usize) -> &'static str {
    if side == 0 { "connector" } else { "listener" }
}

/// Describes an action, unless the log shows its effects elsewhere.
pub(super) fn describe_action(action: Action) -> Option<String> {
    let text = match action {
        Action::Close(side) => format!("{} closes the connection", name(side)),
        Action::Execute(side) => format!("NIC of the {} executes a request", name(side)),
        Action::Drain(side) => format!("{} has drained its lane", name(side)),
        Action::Dial(side) => format!("{} dials", name(side)),
        Action::DialFailed(side) => format!("FAULT: {} can't dial", name(side)),
        Action::Timeout(side) => format!("{} handles a timeout", name(side)),
        Action::Retry(side) => format!("NIC of the {} gives up retransmitting", name(side)),
        Action::Cut => "FAULT: no more packets arrive over the newest lane".to_owned(),
        Action::FailLane(side) => format!("FAULT: the device of the {} fails its lane", name(side)),
        Action::Kill(side, process) => format!("FAULT: {} is killed ({process:?})", name(side)),
        Action::Send(_) | Action::Receive(_) | Action::Register(_) => return None,
        Action::Post(_) | Action::Complete(_) | Action::Poll(_) => return None,
    };
    Some(text)
}

/// Describes a request.
pub(super) fn describe_post(post: &Post<Vec<u8>>) -> String {
    match post {
        Post::Receives { count } => format!("{count} receives"),
        Post::Hello { bytes } => match Hello::parse(bytes) {
            Ok(hello) => format!("its hello, session {}", describe_session(&hello)),
            Err(violation) => format!("a malformed hello ({violation})"),
        },
        Post::Write { tag, buf, remote, immediate, is_signaled } => {
            let frames = buf.as_ref().map_or(String::new(), |buf| describe_frames(buf));
            let signaled = if *is_signaled { "signaled" } else { "unsignaled" };
            let immediate = describe_immediate(*immediate);
            format!(
                "{signaled} WRITE {tag:?} to {:#x} with key {}: {immediate}{frames}",
                remote.addr, remote.rkey
            )
        }
        Post::Probe { .. } => "a probe".to_owned(),
        Post::Read { buf, remote } => {
            format!("READ of {} bytes from {:#x} with key {}", buf.len(), remote.addr, remote.rkey)
        }
    }
}

fn describe_session(hello: &Hello) -> String {
    match hello.session.map(|session| session.received) {
        None => "none".to_owned(),
        Some(None) => "begins".to_owned(),
        Some(Some(received)) => format!("resumes after {received} received messages"),
    }
}

/// Describes the frames of a write.
fn describe_frames(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Ok(frame) = Frame::parse(bytes) {
        let part = match frame.kind {
            FrameKind::Message { len } => format!(" [eager message, {len} bytes]"),
            FrameKind::Rendezvous { len, rkey, .. } => {
                format!(" [rendezvous message, {len} bytes, key {rkey}]")
            }
            kind => format!(" [{kind:?}]"),
        };
        text += &part;
        bytes = bytes.get(frame.frame_len()..).unwrap_or_default();
    }
    text
}

/// Describes the immediate data of a write.
pub(super) fn describe_immediate(immediate: u32) -> String {
    let (units, writes) = (immediate & 0x1f_ffff, immediate >> 21 & 0x1ff);
    match immediate >> 30 {
        0 => format!("frames, {units} units and {writes} writes read"),
        1 => format!("credits, {units} units and {writes} writes read"),
        2 => format!("{} rendezvous messages read", immediate & 0x3fff_ffff),
        _ => "acknowledgement of the close".to_owned(),
    }
}

/// Describes a completion.
pub(super) fn describe_completed(completed: &Completed<Vec<u8>>) -> String {
    match completed {
        Completed::Received { immediate, len } => {
            format!("polls a WRITE of the peer, {len} bytes: {}", describe_immediate(*immediate))
        }
        Completed::Sent { tag, .. } => format!("polls {tag:?}: success"),
        Completed::Failed { tag, status, .. } => format!("polls {tag:?}: {status}"),
    }
}

pub(super) fn describe_event<R: std::fmt::Debug>(event: &Event<R>) -> String {
    match event {
        Event::Established { lane } => format!("has established lane {lane}"),
        Event::Release(region) => format!("releases {region:?}"),
        Event::Drain => "stops its lane".to_owned(),
        Event::Redial { .. } => "must redial".to_owned(),
        Event::Closed(reason) => format!("has ended: {reason}"),
        event => format!("{event:?}"),
    }
}

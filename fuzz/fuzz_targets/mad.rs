//! Any bytes are a connection manager's message or an error; a message written again means the same.
#![no_main]

use adverb_wire::cm::{Mad, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mad) = Mad::parse(bytes) else { return };
    assert!(!mad.message.to_string().is_empty());
    match &mad.message {
        Message::Req(req) => drop(req.cma_header()),
        Message::SidrReq(req) => drop(req.cma_header()),
        _ => {}
    }
    assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
});

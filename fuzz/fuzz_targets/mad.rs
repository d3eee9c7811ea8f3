//! Checks that any bytes parse as a connection manager's message or result in an error, and that an emitted message
//! parses as the same message.
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

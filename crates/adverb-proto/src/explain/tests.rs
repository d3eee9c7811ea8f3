//! Every code that adverb-wire and this crate define has an explanation, and the explanations agree with the code.

use adverb_wire::cm::{RejectReason, SidrStatus};
use adverb_wire::{NakCode, Opcode, Qpn, RnrTimer, Syndrome};

use super::*;
use crate::types::DeviceEvent;
use crate::{Cq, QueueEvent, Srq};

/// Checks that the explanation has the code, and lists the variant's name.
fn check(explanation: Option<&Explanation>, code: u32, variant: &str) {
    let explanation = explanation.unwrap_or_else(|| panic!("{variant} has no explanation"));
    assert!(explanation.has_code(code), "{variant}");
    assert!(explanation.aliases.contains(&variant), "{} lacks the name {variant}", explanation.name);
}

/// Returns the name of a variant: its `Debug` text without fields.
fn variant(value: &impl core::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split('(').next().unwrap_or_default().to_owned()
}

#[test]
fn every_status_is_explained() {
    let named: Vec<Status> =
        (0..1000).map(Status::from_code).filter(|status| !matches!(status, Status::Other(_))).collect();
    assert_eq!(named.len(), status::STATUSES.len());
    for known in named {
        check(super::status(known), known.code(), &variant(&known));
    }
    assert_eq!(super::status(Status::Other(99)), None);
    assert_eq!(Status::Other(99).hint(), None);
}

#[test]
fn every_device_event_is_explained() {
    let qpn = Qpn::truncate(17);
    let events = [
        DeviceEvent::DeviceFatal,
        DeviceEvent::PortActive(1),
        DeviceEvent::PortError(1),
        DeviceEvent::GidsChanged(1),
        DeviceEvent::CompletionQueueError,
        DeviceEvent::QueuePairFatal(qpn),
        DeviceEvent::QueuePairRequestError(qpn),
        DeviceEvent::QueuePairAccessError(qpn),
        DeviceEvent::Established(qpn),
        DeviceEvent::SendQueueDrained(qpn),
        DeviceEvent::LastReceiveReached(qpn),
        DeviceEvent::SharedReceiveQueueError(3),
        DeviceEvent::SharedReceiveQueueLimit(3),
    ];
    // `device_event` matches all variants, so the compiler finds a missing one. This loop finds a wrong code.
    for event in events {
        let explanation = device_event(event).unwrap_or_else(|| panic!("{event:?} has no explanation"));
        let name = variant(&event);
        assert!(explanation.aliases.contains(&name.as_str()), "{} lacks the name {name}", explanation.name);
    }
    // All numbers of `ibv_event_type` have an explanation, also those without a variant.
    for number in 0..=20 {
        assert!(device_event(DeviceEvent::Other(number)).is_some(), "{number}");
    }
    assert_eq!(device_event(DeviceEvent::Other(u32::MAX)), None);
}

#[test]
fn every_queue_event_has_the_explanation_of_its_device_event() {
    let qpn = Qpn::truncate(17);
    let pairs = [
        (QueueEvent::CqOverflow(Cq(1)), DeviceEvent::CompletionQueueError),
        (QueueEvent::Established(qpn), DeviceEvent::Established(qpn)),
        (QueueEvent::SrqLimit(Srq(3)), DeviceEvent::SharedReceiveQueueLimit(3)),
        (QueueEvent::LastReceiveReached(qpn), DeviceEvent::LastReceiveReached(qpn)),
        (QueueEvent::SendQueueDrained(qpn), DeviceEvent::SendQueueDrained(qpn)),
        (QueueEvent::RequestError(qpn), DeviceEvent::QueuePairRequestError(qpn)),
        (QueueEvent::AccessError(qpn), DeviceEvent::QueuePairAccessError(qpn)),
        (QueueEvent::Fatal(qpn), DeviceEvent::QueuePairFatal(qpn)),
    ];
    for (queue, device) in pairs {
        assert!(queue_event(queue).is_some(), "{queue:?}");
        assert_eq!(queue_event(queue), device_event(device), "{queue:?}");
    }
}

#[test]
fn every_syndrome_is_explained() {
    for byte in 0..=u8::MAX {
        let decoded = Syndrome::from_byte(byte);
        let explanation = super::syndrome(decoded).unwrap_or_else(|| panic!("{byte:#x} has no explanation"));
        let expected = match decoded {
            Syndrome::Ack(_) => "ACK",
            Syndrome::RnrNak(_) => "RNR NAK",
            Syndrome::Nak(NakCode::SequenceError) => "NAK PSN sequence error",
            Syndrome::Nak(NakCode::InvalidRequest) => "NAK invalid request",
            Syndrome::Nak(NakCode::RemoteAccess) => "NAK remote access error",
            Syndrome::Nak(NakCode::RemoteOperational) => "NAK remote operational error",
            Syndrome::Nak(NakCode::InvalidRdRequest) => "NAK invalid RD request",
            Syndrome::Reserved(_) => "reserved syndrome",
        };
        assert_eq!(explanation.name, expected, "{byte:#x}");
        // The text that adverb-wire prints finds the explanation.
        if let Syndrome::Nak(_) = decoded {
            assert_eq!(find(&decoded.to_string())[0].explanation, explanation);
        }
    }
}

#[test]
fn rnr_timers_are_as_described() {
    let meaning = find("RNR")[0].explanation.meaning;
    let duration_text = |timer: RnrTimer| format!("{:?}", timer.duration());
    assert!(meaning.contains("10 µs to 491.52 ms"));
    assert_eq!(duration_text(RnrTimer::new(1).unwrap()), "10µs");
    assert_eq!(duration_text(RnrTimer::new(31).unwrap()), "491.52ms");
    assert!(meaning.contains("code 0 is the longest backoff, 655.36 ms"));
    assert_eq!(duration_text(RnrTimer::new(0).unwrap()), "655.36ms");
}

#[test]
fn every_opcode_is_explained_with_its_headers() {
    assert_eq!(Opcode::ALL.len(), opcode::OPCODES.len());
    let len = |header: &str| match header {
        "BTH" => 12,
        "RETH" | "16 reserved bytes" => 16,
        "AtomicETH" => 28,
        "DETH" | "AtomicAckETH" => 8,
        "AETH" | "ImmDt" | "IETH" | "FETH" => 4,
        other => panic!("unknown header {other}"),
    };
    for opcode in Opcode::ALL {
        let explanation = super::opcode(*opcode);
        check(explanation, opcode.byte().into(), &variant(opcode));
        let explanation = explanation.unwrap();
        let is_same = |found: &SearchResult| found.explanation == explanation;
        assert!(find(opcode.name()).iter().any(is_same), "{opcode}");
        let headers = explanation.meaning.split("Headers: ").nth(1).expect("headers").trim_end_matches('.');
        assert_eq!(headers.split(", ").map(len).sum::<usize>(), opcode.header_len(), "{opcode}: {headers}");
    }
}

#[test]
fn every_reject_reason_is_explained() {
    let named: Vec<RejectReason> = (0..=u16::MAX)
        .map(RejectReason::from_code)
        .filter(|reason| !matches!(reason, RejectReason::Other(_)))
        .collect();
    assert_eq!(named.len(), reject::REASONS.len());
    for reason in named {
        check(reject_reason(reason), reason.code().into(), &variant(&reason));
        let explanation = reject_reason(reason).unwrap();
        let is_same = |found: &SearchResult| found.explanation == explanation;
        assert!(find(reason.description()).iter().any(is_same), "{reason}");
    }
    assert_eq!(reject_reason(RejectReason::from_code(999)), None);
}

#[test]
fn every_sidr_status_is_explained() {
    let named: Vec<SidrStatus> = (0..=u8::MAX)
        .map(SidrStatus::from_code)
        .filter(|status| !matches!(status, SidrStatus::Other(_)))
        .collect();
    assert_eq!(named.len(), sidr::STATUSES.len());
    for status in named {
        check(sidr_status(status), status.code().into(), &variant(&status));
    }
}

#[test]
fn explanations_are_complete_and_well_formed() {
    for explanation in all() {
        let name = explanation.name;
        assert!(!name.is_empty() && !explanation.codes.is_empty(), "{name}");
        assert!(explanation.meaning.ends_with('.'), "{name}: the meaning consists of sentences");
        assert!(!explanation.causes.is_empty() && !explanation.checks.is_empty(), "{name}");
        assert!(!explanation.reference.is_empty(), "{name}");
        let cases = explanation.cases.iter().flat_map(|case| [case.cause].into_iter().chain(case.hint));
        let lines = [explanation.summary].into_iter().chain(explanation.hint).chain(cases);
        for line in lines.chain(explanation.causes.iter().copied()).chain(explanation.checks.iter().copied())
        {
            assert!(!line.is_empty() && !line.ends_with('.'), "{name}: “{line}” is a phrase");
        }
        // A line continuation in the source must not leave blanks in the text.
        let texts = [explanation.meaning, explanation.summary].into_iter().chain(explanation.hint);
        let lists = explanation.causes.iter().chain(explanation.checks).copied();
        for text in texts.chain(lists) {
            assert!(!text.contains("  ") && !text.contains('\n'), "{name}: {text}");
        }
    }
}

#[test]
fn codes_are_unique_within_a_kind_and_in_order() {
    for kind in Kind::ALL {
        let mut codes = std::collections::HashSet::new();
        let mut before = None;
        for explanation in kind.explanations() {
            assert_eq!(explanation.kind, kind, "{}", explanation.name);
            for code in explanation.codes.iter().cloned().flatten() {
                assert!(codes.insert(code), "{}: {code} is explained twice", explanation.name);
            }
            let first = *explanation.codes[0].start();
            assert!(before < Some(first), "{} is out of order", explanation.name);
            before = Some(first);
        }
    }
}

#[test]
fn every_explanation_is_found_by_each_name_and_code() {
    for explanation in all() {
        for name in [explanation.name].iter().chain(explanation.aliases) {
            let found = find(name);
            assert!(found.iter().any(|found| found.explanation == explanation), "{name}: {found:?}");
        }
        for code in explanation.codes.iter().flat_map(|range| [*range.start(), *range.end()]) {
            let term = format!("{} {}", explanation.kind.search_prefix(), explanation.kind.format_code(code));
            let found = find(&term);
            assert_eq!(found.len(), 1, "{term}");
            assert_eq!(found[0].explanation, explanation, "{term}");
        }
    }
}

#[test]
fn names_are_unique_and_no_alias_is_listed_twice() {
    let mut names = std::collections::HashSet::new();
    for explanation in all() {
        assert!(names.insert(explanation.name), "{}", explanation.name);
        let mut aliases: Vec<_> = explanation.aliases.iter().map(|alias| alias.to_lowercase()).collect();
        aliases.sort();
        let count = aliases.len();
        aliases.dedup();
        assert_eq!(aliases.len(), count, "{} has an alias twice", explanation.name);
    }
}

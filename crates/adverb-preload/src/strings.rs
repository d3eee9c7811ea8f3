//! Names of codes, and conversions of rates.

use std::ffi::CStr;

use adverb_sys::*;
use libc::{c_char, c_int, c_uint};

/// The statuses of completions, by code.
const STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory window bind error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"remote aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];

/// The asynchronous events, by code.
const EVENTS: &[&CStr] = &[
    c"CQ error",
    c"QP fatal error",
    c"QP request error",
    c"QP access error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration error",
    c"device fatal error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal error",
    c"device speed change",
];

/// The states of ports, by code.
const PORT_STATES: &[&CStr] = &[c"no state change", c"down", c"init", c"armed", c"active", c"active defer"];

/// The types of nodes, by code.
const NODE_TYPES: &[&CStr] = &[
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

fn name(names: &'static [&CStr], code: usize) -> *const c_char {
    names.get(code).copied().unwrap_or(c"unknown").as_ptr()
}

/// The rates: the code, the multiple of 2.5 Gbit/s if there is one, and Mbit/s.
const RATES: &[(ibv_rate, c_int, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 1, 2500),
    (IBV_RATE_5_GBPS, 2, 5000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, -1, 14_062),
    (IBV_RATE_56_GBPS, -1, 56_250),
    (IBV_RATE_112_GBPS, -1, 112_500),
    (IBV_RATE_168_GBPS, -1, 168_750),
    (IBV_RATE_25_GBPS, -1, 25_781),
    (IBV_RATE_100_GBPS, -1, 103_125),
    (IBV_RATE_200_GBPS, -1, 206_250),
    (IBV_RATE_300_GBPS, -1, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, -1, 850_000),
    (IBV_RATE_1200_GBPS, -1, 1_275_000),
];

entry! {
    /// Returns the name of a completion status.
    fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
        name(STATUSES, status as usize)
    }

    /// Returns the name of an asynchronous event.
    fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
        name(EVENTS, event as usize)
    }

    /// Returns the name of a port's state.
    fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
        name(PORT_STATES, port_state as usize)
    }

    /// Returns the name of a type of node.
    fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
        name(NODE_TYPES, usize::try_from(node_type).unwrap_or(0))
    }

    /// Returns a rate as a multiple of 2.5 Gbit/s, or -1.
    fn ibv_rate_to_mult(rate: ibv_rate) -> c_int, Infallible {
        RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, multiple, _)| *multiple)
    }

    /// Returns the rate that is a multiple of 2.5 Gbit/s, or the maximum.
    fn mult_to_ibv_rate(mult: c_int) -> c_uint {
        let found = RATES.iter().find(|(_, multiple, _)| *multiple == mult && mult > 0);
        found.map_or(IBV_RATE_MAX, |(code, ..)| *code)
    }

    /// Returns a rate in Mbit/s, or -1.
    fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int, Infallible {
        RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
    }

    /// Returns the rate of some Mbit/s, or the maximum.
    fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
        let found = RATES.iter().find(|(.., rate)| *rate == mbps);
        found.map_or(IBV_RATE_MAX, |(code, ..)| *code)
    }
}

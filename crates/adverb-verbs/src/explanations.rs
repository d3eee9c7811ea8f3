//! The codes in adverb-proto's explanations are those of rdma-core and the operating system.

use std::collections::HashMap;

use adverb_proto::explain::{self, Explanation, Kind};
use adverb_sys as sys;

/// Returns a map from the names of constants to their values.
macro_rules! constants {
    ($module:ident: $($name:ident)*) => {
        HashMap::from([$((stringify!($name), i64::from($module::$name)),)*])
    };
}

/// Checks that the explanations of a kind have exactly these names and codes.
fn check(kind: Kind, constants: &HashMap<&str, i64>) {
    let code = |explanation: &Explanation| i64::from(*explanation.codes[0].start());
    for explanation in kind.explanations() {
        assert_eq!(constants.get(explanation.name), Some(&code(explanation)), "{}", explanation.name);
    }
    assert_eq!(kind.explanations().len(), constants.len());
}

#[test]
fn statuses_are_those_of_rdma_core() {
    let statuses = constants!(sys:
        IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
        IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR
        IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
        IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR
        IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR
        IBV_WC_TM_RNDV_INCOMPLETE
    );
    check(Kind::CompletionStatus, &statuses);
}

#[test]
fn events_are_those_of_rdma_core() {
    let events = constants!(sys:
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE
        IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED
        IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE IBV_EVENT_WQ_FATAL IBV_EVENT_DEVICE_SPEED_CHANGE
    );
    check(Kind::AsyncEvent, &events);
}

#[test]
fn error_numbers_are_those_of_the_system() {
    let numbers = constants!(libc:
        EPERM ENOENT EINTR EIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY ENODEV EINVAL ENFILE EMFILE ENOTTY ENOSPC
        ENOSYS ENODATA EPROTONOSUPPORT EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNRESET ENOBUFS
        EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH EREMOTEIO
    );
    check(Kind::Errno, &numbers);
    for (name, number) in [("EWOULDBLOCK", libc::EWOULDBLOCK), ("ENOTSUP", libc::ENOTSUP)] {
        assert_eq!(explain::find(name)[0].explanation, explain::errno(number).unwrap());
    }
}

/// Programs print error numbers as these texts.
#[cfg(target_env = "gnu")]
#[test]
fn error_numbers_are_found_by_the_texts_of_the_system() {
    for explanation in Kind::Errno.explanations() {
        let number = i32::try_from(*explanation.codes[0].start()).unwrap();
        let text = std::io::Error::from_raw_os_error(number).to_string();
        let text = text.split(" (os error").next().unwrap();
        let found = explain::find(text);
        assert!(found.iter().any(|found| found.explanation == explanation), "“{text}” is not found");
    }
}

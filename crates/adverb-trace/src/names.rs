//! Names of values, as programs that use libibverbs know them.

use adverb_proto::trace::RetryCause;
use adverb_proto::types::{CompletedOperation, SendFlags, SendOperation, Status};

/// Returns the name of a status in `ibv_wc_status`.
pub(crate) const fn status_name(status: Status) -> &'static str {
    match status.code() {
        0 => "IBV_WC_SUCCESS",
        1 => "IBV_WC_LOC_LEN_ERR",
        2 => "IBV_WC_LOC_QP_OP_ERR",
        3 => "IBV_WC_LOC_EEC_OP_ERR",
        4 => "IBV_WC_LOC_PROT_ERR",
        5 => "IBV_WC_WR_FLUSH_ERR",
        6 => "IBV_WC_MW_BIND_ERR",
        7 => "IBV_WC_BAD_RESP_ERR",
        8 => "IBV_WC_LOC_ACCESS_ERR",
        9 => "IBV_WC_REM_INV_REQ_ERR",
        10 => "IBV_WC_REM_ACCESS_ERR",
        11 => "IBV_WC_REM_OP_ERR",
        12 => "IBV_WC_RETRY_EXC_ERR",
        13 => "IBV_WC_RNR_RETRY_EXC_ERR",
        14 => "IBV_WC_LOC_RDD_VIOL_ERR",
        15 => "IBV_WC_REM_INV_RD_REQ_ERR",
        16 => "IBV_WC_REM_ABORT_ERR",
        17 => "IBV_WC_INV_EECN_ERR",
        18 => "IBV_WC_INV_EEC_STATE_ERR",
        19 => "IBV_WC_FATAL_ERR",
        20 => "IBV_WC_RESP_TIMEOUT_ERR",
        21 => "IBV_WC_GENERAL_ERR",
        22 => "IBV_WC_TM_ERR",
        23 => "IBV_WC_TM_RNDV_INCOMPLETE",
        _ => "unknown status",
    }
}

/// Returns the name and the value of an operation in `ibv_wr_opcode`.
pub(crate) const fn wr_opcode(operation: &SendOperation) -> (&'static str, u32) {
    match operation {
        SendOperation::Write(_) => ("IBV_WR_RDMA_WRITE", 0),
        SendOperation::WriteWithImm(..) => ("IBV_WR_RDMA_WRITE_WITH_IMM", 1),
        SendOperation::Send => ("IBV_WR_SEND", 2),
        SendOperation::SendWithImm(_) => ("IBV_WR_SEND_WITH_IMM", 3),
        SendOperation::Read(_) => ("IBV_WR_RDMA_READ", 4),
        SendOperation::CompareSwap { .. } => ("IBV_WR_ATOMIC_CMP_AND_SWP", 5),
        SendOperation::FetchAdd { .. } => ("IBV_WR_ATOMIC_FETCH_AND_ADD", 6),
        SendOperation::LocalInvalidate(_) => ("IBV_WR_LOCAL_INV", 7),
        SendOperation::BindWindow(_) => ("IBV_WR_BIND_MW", 8),
        SendOperation::SendInvalidate(_) => ("IBV_WR_SEND_WITH_INV", 9),
        SendOperation::Flush(_) => ("IBV_WR_FLUSH", 14),
        SendOperation::AtomicWrite { .. } => ("IBV_WR_ATOMIC_WRITE", 15),
    }
}

/// Returns the name and the value of an operation in `ibv_wc_opcode`.
pub(crate) const fn wc_opcode(operation: &CompletedOperation) -> (&'static str, u32) {
    match operation {
        CompletedOperation::Send => ("IBV_WC_SEND", 0),
        CompletedOperation::Write => ("IBV_WC_RDMA_WRITE", 1),
        CompletedOperation::Read => ("IBV_WC_RDMA_READ", 2),
        CompletedOperation::CompareSwap => ("IBV_WC_COMP_SWAP", 3),
        CompletedOperation::FetchAdd => ("IBV_WC_FETCH_ADD", 4),
        CompletedOperation::BindWindow => ("IBV_WC_BIND_MW", 5),
        CompletedOperation::LocalInvalidate => ("IBV_WC_LOCAL_INV", 6),
        CompletedOperation::Flush => ("IBV_WC_FLUSH", 8),
        CompletedOperation::AtomicWrite => ("IBV_WC_ATOMIC_WRITE", 9),
        CompletedOperation::Recv { .. } => ("IBV_WC_RECV", 128),
        CompletedOperation::RecvWrite { .. } => ("IBV_WC_RECV_RDMA_WITH_IMM", 129),
    }
}

/// Returns the names of send flags, such as `SIGNALED, INLINE`.
pub(crate) fn flag_names(flags: SendFlags) -> String {
    let names = [
        (SendFlags::FENCE, "FENCE"),
        (SendFlags::SIGNALED, "SIGNALED"),
        (SendFlags::SOLICITED, "SOLICITED"),
        (SendFlags::INLINE, "INLINE"),
    ];
    let set: Vec<&str> =
        names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

/// Describes the cause of a retransmission.
pub(crate) const fn cause_words(cause: RetryCause) -> &'static str {
    match cause {
        RetryCause::Timeout => "acknowledgement timeout",
        RetryCause::SequenceNak => "PSN sequence error NAK",
        RetryCause::ImpliedNak => "missing response (implied NAK)",
        RetryCause::Rnr => "RNR NAK",
    }
}

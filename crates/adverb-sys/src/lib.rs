//! Bindings for libibverbs and librdmacm: `repr(C)` structs, constants, and functions loaded at run time.
//!
//! The build needs no headers, clang, cmake or libraries. The first call of [`Ibverbs::load`] or [`RdmaCm::load`] opens
//! `libibverbs.so.1` or `librdmacm.so.1`. A program built with this crate also starts on machines without rdma-core,
//! where [`LoadError`] names the packages to install.
//!
//! ```
//! use adverb_sys::Ibverbs;
//!
//! match Ibverbs::load() {
//!     Ok(ibverbs) => {
//!         let mut count = 0;
//!         // SAFETY: `count` is valid for writes.
//!         let list = unsafe { ibverbs.ibv_get_device_list(&mut count) };
//!         println!("{count} devices");
//!         if !list.is_null() {
//!             // SAFETY: the list was created above, and is freed once.
//!             unsafe { ibverbs.ibv_free_device_list(list) };
//!         }
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # Organization
//!
//! All names are those of the C API, so rdma-core's manual pages apply. Some functions of the C API are exported by the
//! libraries, others are inline functions in the headers:
//!
//! - A function that the library exports is a method of [`Ibverbs`] or [`RdmaCm`].
//! - A function for which the header substitutes another one (`ibv_query_port`, `ibv_reg_mr`, `ibv_create_qp_ex`, …) is
//!   a method with the behavior of the header. The exported symbol of that name has the behavior of its oldest version.
//! - An inline function that needs only its object is a free function: the functions that post and poll call
//!   [`ibv_context::ops`], `ibv_wr_*` call [`ibv_qp_ex`], `ibv_start_poll` and related functions call [`ibv_cq_ex`].
//!   Extended verbs call [`verbs_context`], after checking that the library is new enough.
//!
//! Most functions are unsafe, and perform no checks beyond those of the C API. In their safety requirements, an object
//! is alive from its creation until it is destroyed. The safe API is the crate `adverb`.
//!
//! Fields are public, so that a test can construct an [`ibv_context`] with its own operations.
//!
//! # Verification of the definitions
//!
//! Each struct, field, enumeration, constant and function is declared in a macro that also adds it to a table. The test
//! `layout` generates a C program from the table, compiles it with the installed headers, and compares every size,
//! alignment, offset, type, value and signature. Items newer than rdma-core 44, the oldest tested release, are marked
//! and compared if the headers define them.
//!
//! # Statistics of network interfaces
//!
//! [`ethtool`] reads the statistics of a network interface's driver, such as pause frames. It needs no library.
//!
//! On systems other than Linux, this crate is empty.

#![cfg(target_os = "linux")]
// The names are those of the C API, so that users find them in rdma-core's manual pages.
#![allow(non_camel_case_types)]

#[macro_use]
mod table;
#[macro_use]
mod context;

mod ah;
mod big_endian;
mod cm;
mod cq;
mod cq_ex;
mod device;
mod errno;
pub mod ethtool;
mod event;
mod gid;
mod ibverbs;
#[doc(hidden)]
pub mod layout;
mod load;
mod mr;
mod mw;
mod pd;
mod port;
mod qp;
mod qp_attr;
mod qp_ex;
mod srq;
mod wc;
mod wr;

pub use ah::*;
pub use big_endian::*;
pub use cm::*;
pub use context::*;
pub use cq::*;
pub use cq_ex::*;
pub use device::*;
pub use event::*;
pub use gid::*;
pub use ibverbs::*;
pub use load::LoadError;
pub use mr::*;
pub use mw::*;
pub use pd::*;
pub use port::*;
pub use qp::*;
pub use qp_attr::*;
pub use qp_ex::*;
pub use srq::*;
pub use wc::*;
pub use wr::*;

//! The shape of libibverbs and librdmacm: their public structs as `repr(C)`, their constants, and their
//! functions, found at run time.
//!
//! Building needs no headers, no clang, no cmake and no library to link: [`Ibverbs::load`] and
//! [`RdmaCm::load`] open `libibverbs.so.1` and `librdmacm.so.1` when they are first asked to. A program that
//! was built with this crate starts where rdma-core isn't installed, and the [`LoadError`] says what to
//! install.
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
//!             // SAFETY: the list was made above, and is freed once.
//!             unsafe { ibverbs.ibv_free_device_list(list) };
//!         }
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # What is where
//!
//! Names are C's own, so that its manual pages apply. rdma-core's headers are half library and half inline
//! functions, and so is this crate:
//!
//! - A function that the library exports is a method of [`Ibverbs`] or [`RdmaCm`].
//! - A function that the header redirects (`ibv_query_port`, `ibv_reg_mr`, `ibv_create_qp_ex`, …) is a method
//!   that does what the header does: the plain symbol has the behaviour of long ago.
//! - A function that the header answers from the object alone is a free function: posting and polling go
//!   through [`ibv_context::ops`], `ibv_wr_*` through [`ibv_qp_ex`], `ibv_start_poll` and its like through
//!   [`ibv_cq_ex`], and extended verbs through [`verbs_context`], after a check that the library is new
//!   enough to have them.
//!
//! Everything here is as unsafe as in C, and nothing is checked that C doesn't check. The safe API is the
//! crate `adverb`.
//!
//! Fields are public, so that a test can make an [`ibv_context`] by hand, with operations of its own.
//!
//! # Why the definitions can be trusted
//!
//! Each struct, field, enumeration, constant and function is declared inside a macro that also enters it in a
//! table. The test `layout` turns the table into a C program, compiles it with the installed headers, and
//! compares every size, alignment, offset, type, value and signature. What is newer than rdma-core 44, the
//! oldest release that we test with, is marked so, and compared where the headers have it.
//!
//! Outside Linux this crate is empty.

#![cfg(target_os = "linux")]
// The names are C's own: people look them up in rdma-core's manual pages, and grep for them.
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

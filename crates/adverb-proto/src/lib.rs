//! What a queue pair does with packets: the engine between the doorbell and the completion, as a pure state
//! machine.
//!
//! So far this crate holds only the engine's [vocabulary]: the words in which an application and a device speak of
//! work, whichever device it is. The engine itself comes next.

#![forbid(unsafe_code)]

pub mod vocabulary;
